#!/usr/bin/env python3
"""Says which tables of tables.txt may be used for tuning the time model: those whose FNV-1a hash
of the name leaves 0 when divided by 3. Nobody chooses, and the rule was written first."""
import pathlib


def fnv1a(name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def tables() -> list[str]:
    lines = pathlib.Path(__file__).with_name("tables.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


if __name__ == "__main__":
    for table in tables():
        print(f"{table:<22}{'tuning' if fnv1a(table) % 3 == 0 else 'scored'}")
