#include "engine/data/arrow/module/row_texts.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/util/base64.h>
#include <arrow/util/float16.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>

namespace sherd::data {
namespace {

using arrow::Array;
using arrow::ArrayData;
using arrow::Status;
using arrow::Type;

/// The same bytes, without the claim that they are UTF-8.
std::shared_ptr<ArrayData> as_bytes(const ArrayData& texts) {
  const auto data = std::make_shared<ArrayData>(texts);
  switch (texts.type->id()) {
    case Type::STRING:
      data->type = arrow::binary();
      break;
    case Type::LARGE_STRING:
      data->type = arrow::large_binary();
      break;
    case Type::STRING_VIEW:
      data->type = arrow::binary_view();
      break;
    case Type::DICTIONARY: {
      const auto& type = static_cast<const arrow::DictionaryType&>(*texts.type);
      data->dictionary = as_bytes(*texts.dictionary);
      data->type = arrow::dictionary(type.index_type(), data->dictionary->type, type.ordered());
      break;
    }
    case Type::EXTENSION:
      data->type = static_cast<const arrow::ExtensionType&>(*texts.type).storage_type();
      return as_bytes(*data);
    default:
      break;
  }
  return data;
}

template <class ArrayType>
std::string_view view(const Array& array, std::int64_t row) {
  return static_cast<const ArrayType&>(array).GetView(row);
}

template <class ArrayType, class Number = typename ArrayType::value_type>
Status append_integer(const Array& array, std::int64_t row, std::string& to) {
  to += std::to_string(static_cast<Number>(static_cast<const ArrayType&>(array).Value(row)));
  return Status::OK();
}

/// As Python writes it, but for the exponent: 1.0, not 1.
template <class Number>
Status append_number(Number number, std::string& to) {
  if (!std::isfinite(number)) {
    to += "null";
    return Status::OK();
  }
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  to += text;
  if (text.find_first_of(".e") == std::string_view::npos) to += ".0";
  return Status::OK();
}

Status append_string(std::string_view text, std::string& to) {
  constexpr std::string_view kHex = "0123456789abcdef";
  to += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      to += {'\\', c};
    } else if (byte < 0x20) {
      to += {'\\', 'u', '0', '0', kHex[byte / 16], kHex[byte % 16]};
    } else {
      to += c;
    }
  }
  to += '"';
  return Status::OK();
}

Status append_value(const Array& array, std::int64_t row, std::string& to);

Status append_elements(const Array& values, std::int64_t begin, std::int64_t count,
                       std::string& to) {
  to += '[';
  for (std::int64_t i = 0; i < count; ++i) {
    if (i > 0) to += ", ";
    ARROW_RETURN_NOT_OK(append_value(values, begin + i, to));
  }
  to += ']';
  return Status::OK();
}

template <class ArrayType>
Status append_list(const Array& array, std::int64_t row, std::string& to) {
  const auto& list = static_cast<const ArrayType&>(array);
  return append_elements(*list.values(), list.value_offset(row), list.value_length(row), to);
}

Status append_struct(const Array& array, std::int64_t row, std::string& to) {
  const auto& fields = static_cast<const arrow::StructArray&>(array);
  to += '{';
  for (int i = 0; i < fields.num_fields(); ++i) {
    if (i > 0) to += ", ";
    ARROW_RETURN_NOT_OK(append_string(fields.struct_type()->field(i)->name(), to));
    to += ": ";
    ARROW_RETURN_NOT_OK(append_value(*fields.field(i), row, to));
  }
  to += '}';
  return Status::OK();
}

Status append_map(const Array& array, std::int64_t row, std::string& to) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  const bool is_object = map.map_type()->key_type()->id() == Type::STRING;
  const std::int64_t begin = map.value_offset(row), count = map.value_length(row);
  to += is_object ? '{' : '[';
  for (std::int64_t i = begin; i < begin + count; ++i) {
    if (i > begin) to += ", ";
    if (!is_object) to += '[';
    ARROW_RETURN_NOT_OK(append_value(*map.keys(), i, to));
    to += is_object ? ": " : ", ";
    ARROW_RETURN_NOT_OK(append_value(*map.items(), i, to));
    if (!is_object) to += ']';
  }
  to += is_object ? '}' : ']';
  return Status::OK();
}

Status append_other(const Array& array, std::int64_t row, std::string& to) {
  ARROW_ASSIGN_OR_RAISE(const auto scalar, array.GetScalar(row));
  return append_string(scalar->ToString(), to);
}

Status append_value(const Array& array, std::int64_t row, std::string& to) {
  if (array.IsNull(row)) {
    to += "null";
    return Status::OK();
  }
  switch (array.type_id()) {
    case Type::NA:
      to += "null";
      return Status::OK();
    case Type::BOOL:
      to += static_cast<const arrow::BooleanArray&>(array).Value(row) ? "true" : "false";
      return Status::OK();
    case Type::INT8:
      return append_integer<arrow::Int8Array, int>(array, row, to);
    case Type::UINT8:
      return append_integer<arrow::UInt8Array, int>(array, row, to);
    case Type::INT16:
      return append_integer<arrow::Int16Array>(array, row, to);
    case Type::UINT16:
      return append_integer<arrow::UInt16Array>(array, row, to);
    case Type::INT32:
      return append_integer<arrow::Int32Array>(array, row, to);
    case Type::UINT32:
      return append_integer<arrow::UInt32Array>(array, row, to);
    case Type::INT64:
      return append_integer<arrow::Int64Array>(array, row, to);
    case Type::UINT64:
      return append_integer<arrow::UInt64Array>(array, row, to);
    case Type::HALF_FLOAT: {
      const auto bits = static_cast<const arrow::HalfFloatArray&>(array).Value(row);
      return append_number(arrow::util::Float16::FromBits(bits).ToFloat(), to);
    }
    case Type::FLOAT:
      return append_number(static_cast<const arrow::FloatArray&>(array).Value(row), to);
    case Type::DOUBLE:
      return append_number(static_cast<const arrow::DoubleArray&>(array).Value(row), to);
    case Type::STRING:
      return append_string(view<arrow::StringArray>(array, row), to);
    case Type::LARGE_STRING:
      return append_string(view<arrow::LargeStringArray>(array, row), to);
    case Type::STRING_VIEW:
      return append_string(view<arrow::StringViewArray>(array, row), to);
    case Type::BINARY:
      return append_string(arrow::util::base64_encode(view<arrow::BinaryArray>(array, row)), to);
    case Type::LARGE_BINARY:
      return append_string(arrow::util::base64_encode(view<arrow::LargeBinaryArray>(array, row)),
                           to);
    case Type::BINARY_VIEW:
      return append_string(arrow::util::base64_encode(view<arrow::BinaryViewArray>(array, row)),
                           to);
    case Type::LIST:
      return append_list<arrow::ListArray>(array, row, to);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, row, to);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, row, to);
    case Type::LIST_VIEW:
      return append_list<arrow::ListViewArray>(array, row, to);
    case Type::LARGE_LIST_VIEW:
      return append_list<arrow::LargeListViewArray>(array, row, to);
    case Type::STRUCT:
      return append_struct(array, row, to);
    case Type::MAP:
      return append_map(array, row, to);
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return append_value(*dictionary.dictionary(), dictionary.GetValueIndex(row), to);
    }
    case Type::EXTENSION:
      return append_value(*static_cast<const arrow::ExtensionArray&>(array).storage(), row, to);
    default:
      return append_other(array, row, to);
  }
}

std::int32_t as_id(std::int64_t number) {
  return number >= 0 && number <= std::numeric_limits<std::int32_t>::max()
             ? static_cast<std::int32_t>(number)
             : -1;
}

std::int32_t id_of(const Array& array, std::int64_t i) {
  if (array.IsNull(i)) return -1;
  switch (array.type_id()) {
    case Type::INT8:
      return as_id(static_cast<const arrow::Int8Array&>(array).Value(i));
    case Type::UINT8:
      return as_id(static_cast<const arrow::UInt8Array&>(array).Value(i));
    case Type::INT16:
      return as_id(static_cast<const arrow::Int16Array&>(array).Value(i));
    case Type::UINT16:
      return as_id(static_cast<const arrow::UInt16Array&>(array).Value(i));
    case Type::INT32:
      return as_id(static_cast<const arrow::Int32Array&>(array).Value(i));
    case Type::UINT32:
      return as_id(static_cast<const arrow::UInt32Array&>(array).Value(i));
    case Type::INT64:
      return as_id(static_cast<const arrow::Int64Array&>(array).Value(i));
    case Type::UINT64:
      // What doesn't fit becomes negative.
      return as_id(
          static_cast<std::int64_t>(static_cast<const arrow::UInt64Array&>(array).Value(i)));
    default:
      return -1;
  }
}

template <class ListType>
void append_ids_of(const Array& column, std::int64_t row, std::string& to) {
  const auto& list = static_cast<const ListType&>(column);
  const Array& values = *list.values();
  const std::int64_t begin = list.value_offset(row), count = list.value_length(row);
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const std::int32_t id = id_of(values, i);
    to.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
}

}  // namespace

Status check_batch(const arrow::RecordBatch& batch, bool is_texts) {
  if (!is_texts) return batch.ValidateFull();
  ARROW_RETURN_NOT_OK(batch.Validate());
  return arrow::MakeArray(as_bytes(*batch.column_data(0)))->ValidateFull();
}

bool append_text(const Array& column, std::int64_t row, std::string& to) {
  if (column.IsNull(row)) return false;
  switch (column.type_id()) {
    case Type::STRING:
      to += view<arrow::StringArray>(column, row);
      return true;
    case Type::LARGE_STRING:
      to += view<arrow::LargeStringArray>(column, row);
      return true;
    case Type::STRING_VIEW:
      to += view<arrow::StringViewArray>(column, row);
      return true;
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(column);
      return append_text(*dictionary.dictionary(), dictionary.GetValueIndex(row), to);
    }
    case Type::EXTENSION:
      return append_text(*static_cast<const arrow::ExtensionArray&>(column).storage(), row, to);
    default:
      return false;  // of a column in which all are null
  }
}

bool append_ids(const Array& column, std::int64_t row, std::string& to) {
  if (column.IsNull(row)) return false;
  switch (column.type_id()) {
    case Type::LIST:
      append_ids_of<arrow::ListArray>(column, row, to);
      return true;
    case Type::LARGE_LIST:
      append_ids_of<arrow::LargeListArray>(column, row, to);
      return true;
    case Type::FIXED_SIZE_LIST:
      append_ids_of<arrow::FixedSizeListArray>(column, row, to);
      return true;
    default:
      return false;  // of a column in which all are null
  }
}

Status append_json(const arrow::RecordBatch& batch, std::int64_t row, std::string& to) {
  to += '{';
  for (int i = 0; i < batch.num_columns(); ++i) {
    if (i > 0) to += ", ";
    ARROW_RETURN_NOT_OK(append_string(batch.column_name(i), to));
    to += ": ";
    ARROW_RETURN_NOT_OK(append_value(*batch.column(i), row, to));
  }
  to += '}';
  return Status::OK();
}

}  // namespace sherd::data
