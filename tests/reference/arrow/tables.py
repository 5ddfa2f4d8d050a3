"""Makes tests/engine/data/arrow/tables.json: small Parquet and Arrow files, as pyarrow and Hugging Face
datasets write them, and what is in their rows.

  texts     the rows of the column "text" (null: no value)
  files     name -> bytes in base64; all hold `texts`
  others    name -> bytes in base64; what can't be read, or holds something else
  rows      the rows of others["every_type.*"], as JSON values
  chats     the rows of others["chats.*"], as JSON texts, as Python's json writes to_pylist()
  folders   path -> bytes in base64, written by save_to_disk: "dataset" holds `texts` in two files,
            "splits" is a DatasetDict

    build/oracle-venv/bin/python tests/reference/arrow/tables.py
"""

import base64
import datetime
import decimal
import io
import json
import pathlib
import tempfile

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["one", "zwei \u00fc\u00f6", None, "", "three\nlines\n", "\U0001f600 four", "the " * 40, None, "six\t\"quoted\"",
         "seven", "seven", "last"]
TO = pathlib.Path(__file__).parents[2] / "engine/data/arrow/tables.json"


def table_of(texts=None, type_=None):
    """The text between a column of structs and one of numbers, so that columns aren't leaves."""
    texts = pa.array(TEXTS if texts is None else texts, type=pa.string())
    if type_ is not None:
        texts = texts.cast(type_)
    n = len(texts)
    meta = pa.array([{"id": i, "tags": ["a", "b"][: i % 3]} for i in range(n)],
                    type=pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    return pa.table({"meta": meta, "text": texts, "count": pa.array(range(n), type=pa.int32())})


def parquet(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, **{"row_group_size": 5, "compression": "none", **options})
    return out.getvalue()


def ipc(table, is_stream, rows_of_batch=5, **options):
    out = io.BytesIO()
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with new(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows_of_batch)
    return out.getvalue()


def sliced(table):
    """The same rows as a part of a longer table: offsets aren't zero."""
    return pa.concat_tables([table.slice(1), table, table.slice(0, 1)]).combine_chunks().slice(len(table) - 1, len(table))


def growing_dictionary():
    """A stream in which each batch brings a longer dictionary."""
    out = io.BytesIO()
    schema = pa.schema([("text", pa.dictionary(pa.int8(), pa.string()))])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    words = []
    with pa.ipc.new_stream(out, schema, options=options) as writer:
        for begin in range(0, len(TEXTS), 4):
            part = TEXTS[begin : begin + 4]
            words += [text for text in dict.fromkeys(part) if text is not None and text not in words]
            indices = pa.array([None if text is None else words.index(text) for text in part], type=pa.int8())
            writer.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indices, pa.array(words))], schema=schema))
    return out.getvalue()


def files():
    plain, words = table_of(), pa.dictionary(pa.int32(), pa.string())
    made = {f"{name}.parquet": parquet(plain, compression=name) for name in ("none", "snappy", "gzip", "zstd", "brotli", "lz4")}
    made["plain_encoding.parquet"] = parquet(plain, use_dictionary=False, data_page_version="2.0", compression="zstd")
    made["delta_encoding.parquet"] = parquet(plain, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    made["checksums.parquet"] = parquet(plain, write_page_checksum=True)
    made["no_arrow_schema.parquet"] = parquet(plain, store_schema=False)
    made["sliced.parquet"] = parquet(sliced(plain))
    for name, type_ in (("large_string", pa.large_string()), ("string_view", pa.string_view()), ("dictionary", words)):
        made[f"{name}.parquet"] = parquet(table_of(type_=type_))
        made[f"{name}.arrow"] = ipc(table_of(type_=type_), is_stream=False, unify_dictionaries=True)
        made[f"{name}_stream.arrow"] = ipc(table_of(type_=type_), is_stream=True)
        made[f"sliced_{name}.arrow"] = ipc(sliced(table_of(type_=type_)), is_stream=True)
    for packing in (None, "lz4", "zstd"):
        made[f"{packing or 'plain'}.arrow"] = ipc(plain, is_stream=False, compression=packing)
        made[f"{packing or 'plain'}_stream.arrow"] = ipc(plain, is_stream=True, compression=packing)
    made["growing_dictionary.arrow"] = growing_dictionary()
    return made


def every_type():
    day = datetime.date(2026, 11, 26)
    return pa.table({
        "b": pa.array([True, None], type=pa.bool_()),
        "i8": pa.array([-128, 127], type=pa.int8()),
        "u64": pa.array([2**64 - 1, 0], type=pa.uint64()),
        "i64": pa.array([-(2**63), 2**63 - 1], type=pa.int64()),
        "f32": pa.array([0.5, float("nan")], type=pa.float32()),
        "f64": pa.array([0.1, 1e300], type=pa.float64()),
        "s": pa.array(["\"\\\n\u0001\u00fc", ""], type=pa.string()),
        "words": pa.array(["x", "x"]).dictionary_encode(),
        "binary": pa.array([b"\x00\xff\x10", b""], type=pa.binary()),
        "list": pa.array([[1, None, 3], []], type=pa.list_(pa.int16())),
        "fixed": pa.array([[1, 2], [3, 4]], type=pa.list_(pa.int32(), 2)),
        "nested": pa.array([[{"a": [{"c": "d"}], "e": None}], None],
                           type=pa.list_(pa.struct([("a", pa.list_(pa.struct([("c", pa.string())]))), ("e", pa.int8())]))),
        "map": pa.array([[("k", 1), ("l", None)], []], type=pa.map_(pa.string(), pa.int32())),
        "day": pa.array([day, None], type=pa.date32()),
        "decimal": pa.array([decimal.Decimal("1.50"), None], type=pa.decimal128(5, 2)),
    })


def rows_of(table):
    """As JSON values: NaN is null, bytes are base64, maps are objects, days and decimals their text."""
    def value(x):
        if isinstance(x, float) and x != x:
            return None
        if isinstance(x, bytes):
            return base64.b64encode(x).decode()
        if isinstance(x, (datetime.date, decimal.Decimal)):
            return str(x)
        if isinstance(x, dict):
            return {k: value(v) for k, v in x.items()}
        return [value(v) for v in x] if isinstance(x, list) else x

    rows = table.to_pylist()
    for row in rows:
        row["map"] = dict(row["map"])
    return value(rows)


def chats():
    def call(name, arguments):
        return [{"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]

    def message(role, content, tool_calls=None, weight=None):
        return {"role": role, "content": content, "tool_calls": tool_calls, "weight": weight}

    return pa.Table.from_pylist([
        {"messages": [message("user", "a \"b\"\n"), message("assistant", "c"), message("user", "d"), message("assistant", "e")],
         "source": "x", "tools": None},
        {"messages": [message("system", "s"), message("user", "\u00fc"), message("assistant", "f", weight=0),
                      message("user", "g"), message("assistant", "h")], "source": "y", "tools": None},
        {"messages": [message("user", "w?"), message("assistant", None, call("weather", {"city": "Ulm"})),
                      message("tool", "sun"), message("assistant", "sun")],
         "source": "z", "tools": json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {}}}])},
        {"messages": [message("assistant", "nobody asked")], "source": None, "tools": None},
    ])


def others(made):
    table = chats()
    return {
        "every_type.parquet": parquet(every_type()),
        "every_type.arrow": ipc(sliced(every_type()), is_stream=True),
        "chats.parquet": parquet(table, compression="zstd", row_group_size=3),
        "chats.arrow": ipc(table, is_stream=True, rows_of_batch=3),
        "no_rows.parquet": parquet(table_of([])),
        "no_rows.arrow": ipc(table_of([]), is_stream=True),
        "no_batches.arrow": ipc(table_of([]), is_stream=False),
        "all_null.parquet": parquet(pa.table({"text": pa.nulls(3)})),
        "twice.arrow": ipc(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), is_stream=True),
        "not_utf8.parquet": parquet(pa.table({"text": pa.array([b"ok", b"ab\xff", b"the end"]).view(pa.string())})),
        "not_utf8.arrow": ipc(pa.table({"text": pa.array([b"ok", b"ab\xff", b"the end"]).view(pa.string())}), is_stream=True),
        "no_end.arrow": made["plain_stream.arrow"][:-8],
    }


def folders():
    data = datasets.Dataset.from_dict({"text": TEXTS})
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        data.save_to_disk(root / "dataset", num_shards=2)
        datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(root / "splits")
        for path in sorted(root.rglob("*")):
            if path.is_file():
                made[str(path.relative_to(root))] = path.read_bytes()
    return made


def encoded(made):
    return {name: base64.b64encode(content).decode() for name, content in made.items()}


def main():
    datasets.disable_progress_bars()
    made = files()
    result = {"texts": TEXTS, "files": encoded(made), "others": encoded(others(made)), "rows": rows_of(every_type()),
              "chats": [json.dumps(row, ensure_ascii=False) for row in chats().to_pylist()], "folders": encoded(folders())}
    TO.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{TO}: {len(result['files'])} files of the same texts, {TO.stat().st_size} bytes")


main()
