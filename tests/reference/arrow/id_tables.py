"""Makes tests/engine/data/arrow/id_tables.json: small Parquet and Arrow files with columns of token ids, as pyarrow
writes them.

  rows     the ids of each row (null: no list)
  files    name -> bytes in base64; the column "input_ids" of all holds `rows`, as lists of several kinds and types
  others   name -> bytes in base64; what can't be read as ids below 60

    build/oracle-venv/bin/python tests/reference/arrow/id_tables.py
"""
import base64
import io
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = [[5, 6, 7], [], None, [59] * 4, list(range(40)), [1]]
FIXED = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
TO = pathlib.Path(__file__).parents[2] / "engine/data/arrow/id_tables.json"


def table_of(rows, type_, name="input_ids"):
    n = len(rows)
    return pa.table({"text": pa.array([str(i) for i in range(n)]), name: pa.array(rows, type=type_),
                     "mask": pa.array([[1] * len(row or []) for row in rows], type=pa.list_(pa.int8()))})


def parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=4)
    return out.getvalue()


def ipc(table, new):
    out = io.BytesIO()
    with new(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return out.getvalue()


def main():
    files = {f"{name}.parquet": parquet(table_of(ROWS, pa.list_(type_))) for name, type_ in
             {"int32": pa.int32(), "int64": pa.int64(), "uint16": pa.uint16(), "uint64": pa.uint64()}.items()}
    files["large.parquet"] = parquet(table_of(ROWS, pa.large_list(pa.int32())))
    files["file.arrow"] = ipc(table_of(ROWS, pa.list_(pa.int32())), pa.ipc.new_file)
    files["stream.arrow"] = ipc(table_of(ROWS, pa.large_list(pa.int64())), pa.ipc.new_stream)
    long = table_of(ROWS + ROWS, pa.list_(pa.int32()))
    files["slice.arrow"] = ipc(long.slice(len(ROWS)), pa.ipc.new_file)
    others = {
        "fixed.parquet": parquet(table_of(FIXED, pa.list_(pa.int32(), 3))),
        "large_id.parquet": parquet(table_of([[1], [2, 60]], pa.list_(pa.int32()))),
        "huge_id.parquet": parquet(table_of([[1], [2**40]], pa.list_(pa.int64()))),
        "null_id.parquet": parquet(table_of([[1], [None]], pa.list_(pa.int32()))),
        "no_ids.parquet": parquet(table_of([[], None], pa.list_(pa.int32()))),
        "floats.parquet": parquet(table_of([[1.0]], pa.list_(pa.float32()))),
    }

    def packed(group):
        return {name: base64.b64encode(content).decode() for name, content in group.items()}
    TO.write_text(json.dumps({"rows": ROWS, "fixed": FIXED, "files": packed(files), "others": packed(others)},
                             indent=1) + "\n")


if __name__ == "__main__":
    main()
