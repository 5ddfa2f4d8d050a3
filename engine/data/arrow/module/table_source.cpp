#include "engine/data/arrow/module/table_source.h"

#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/properties.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sherd::data {
namespace {

using arrow::Result;
using arrow::Status;

/// Rows of Parquet that are decoded at a time.
constexpr std::int64_t kBatchRows = 256;
constexpr std::int64_t kBufferBytes = std::int64_t{1} << 20;

bool has_texts(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA:  // what pyarrow makes of a column in which all are null
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
      return true;
    case arrow::Type::DICTIONARY:
      return has_texts(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case arrow::Type::EXTENSION:
      return has_texts(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    default:
      return false;
  }
}

bool has_ids(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA:
      return true;
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
      return arrow::is_integer(static_cast<const arrow::BaseListType&>(type).value_type()->id());
    default:
      return false;
  }
}

std::string names_of(const arrow::Schema& schema) {
  constexpr int kMost = 20;
  std::string names;
  for (int i = 0; i < schema.num_fields(); ++i) {
    if (i == kMost) return names + " and " + std::to_string(schema.num_fields() - kMost) + " more";
    names += (i == 0 ? "" : ", ") + schema.field(i)->name().substr(0, 64);
  }
  return names.empty() ? "none" : names;
}

/// The index of the requested column; -1 if all are.
Result<int> index_of(const ArrowRequest& request, const arrow::Schema& schema) {
  if (!request.column) return -1;
  const std::string name = request.column;
  const std::vector<int> indices = schema.GetAllFieldIndices(name);
  const std::string which =
      request.is_ids ? "data.field names the column of the ids."
                     : "data.field (--field of sherd tokenize) names the column of the text.";
  if (indices.empty()) {
    return Status::Invalid("has no column \"", name, "\"; its columns are ", names_of(schema), ". ",
                           which);
  }
  if (indices.size() > 1) {
    return Status::Invalid("has ", indices.size(), " columns \"", name, "\". ", which);
  }
  const arrow::DataType& type = *schema.field(indices[0])->type();
  if (request.is_ids ? !has_ids(type) : !has_texts(type)) {
    return Status::Invalid(
        "column \"", name, "\" has the type ", type.ToString().substr(0, 200),
        request.is_ids ? ", which isn't a list of token ids" : ", which isn't text",
        "; its columns are ", names_of(schema), ". ", which);
  }
  return indices[0];
}

void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child, leaves);
}

class ParquetSource final : public TableSource {
 public:
  static Result<std::unique_ptr<TableSource>> open(const ArrowRequest& request) {
    auto source = std::make_unique<ParquetSource>();
    ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(request.path));
    // Pages are read one after another, not whole row groups.
    parquet::ReaderProperties properties(arrow::default_memory_pool());
    properties.enable_buffered_stream();
    properties.set_buffer_size(kBufferBytes);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(std::move(file), properties));
    ARROW_ASSIGN_OR_RAISE(source->reader_, builder.properties(arrow_properties)->Build());
    std::shared_ptr<arrow::Schema> schema;
    ARROW_RETURN_NOT_OK(source->reader_->GetSchema(&schema));
    ARROW_ASSIGN_OR_RAISE(const int index, index_of(request, *schema));
    std::vector<int> groups, leaves;
    for (int i = 0; i < source->reader_->num_row_groups(); ++i) groups.push_back(i);
    const auto& fields = source->reader_->manifest().schema_fields;
    for (int i = 0; i < static_cast<int>(fields.size()); ++i) {
      if (index < 0 || i == index) add_leaves(fields[static_cast<std::size_t>(i)], leaves);
    }
    ARROW_ASSIGN_OR_RAISE(source->batches_, source->reader_->GetRecordBatchReader(groups, leaves));
    return source;
  }
  Result<std::shared_ptr<arrow::RecordBatch>> next() override { return batches_->Next(); }

 private:
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
};

arrow::ipc::IpcReadOptions options_for(int index) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;
  if (index >= 0) options.included_fields = {index};
  return options;
}

class IpcFileSource final : public TableSource {
 public:
  static Result<std::unique_ptr<TableSource>> open(
      const ArrowRequest& request, const std::shared_ptr<arrow::io::RandomAccessFile>& file) {
    using Reader = arrow::ipc::RecordBatchFileReader;
    auto source = std::make_unique<IpcFileSource>();
    ARROW_ASSIGN_OR_RAISE(source->reader_, Reader::Open(file, options_for(-1)));
    ARROW_ASSIGN_OR_RAISE(const int index, index_of(request, *source->reader_->schema()));
    if (index >= 0) {
      ARROW_ASSIGN_OR_RAISE(source->reader_, Reader::Open(file, options_for(index)));
    }
    return source;
  }
  Result<std::shared_ptr<arrow::RecordBatch>> next() override {
    if (batch_ == reader_->num_record_batches()) return nullptr;
    return reader_->ReadRecordBatch(batch_++);
  }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
  int batch_ = 0;
};

class IpcStreamSource final : public TableSource {
 public:
  static Result<std::unique_ptr<TableSource>> open(
      const ArrowRequest& request, const std::shared_ptr<arrow::io::RandomAccessFile>& file) {
    using Reader = arrow::ipc::RecordBatchStreamReader;
    auto source = std::make_unique<IpcStreamSource>();
    source->file_ = file;
    ARROW_ASSIGN_OR_RAISE(
        source->reader_,
        Reader::Open(std::shared_ptr<arrow::io::InputStream>(file), options_for(-1)));
    ARROW_ASSIGN_OR_RAISE(const int index, index_of(request, *source->reader_->schema()));
    if (index >= 0) {
      ARROW_RETURN_NOT_OK(file->Seek(0));
      ARROW_ASSIGN_OR_RAISE(
          source->reader_,
          Reader::Open(std::shared_ptr<arrow::io::InputStream>(file), options_for(index)));
    }
    return source;
  }
  /// A stream that is cut between two batches is found by the marker that it lacks.
  Result<std::shared_ptr<arrow::RecordBatch>> next() override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t before, file_->Tell());
    std::shared_ptr<arrow::RecordBatch> batch;
    ARROW_RETURN_NOT_OK(reader_->ReadNext(&batch));
    if (batch) return batch;
    ARROW_ASSIGN_OR_RAISE(const std::int64_t after, file_->Tell());
    if (after == before) return Status::IOError("its end-of-stream marker is missing");
    return nullptr;
  }

 private:
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader_;
};

}  // namespace

Result<std::unique_ptr<TableSource>> open_table(const ArrowRequest& request) {
  if (request.is_parquet) return ParquetSource::open(request);
  ARROW_ASSIGN_OR_RAISE(const auto file,
                        arrow::io::MemoryMappedFile::Open(request.path, arrow::io::FileMode::READ));
  constexpr std::string_view kMagic = "ARROW1";
  ARROW_ASSIGN_OR_RAISE(const auto head, file->ReadAt(0, kMagic.size()));
  const std::string_view bytes(reinterpret_cast<const char*>(head->data()),
                               static_cast<std::size_t>(head->size()));
  if (bytes == kMagic) return IpcFileSource::open(request, file);
  return IpcStreamSource::open(request, file);
}

}  // namespace sherd::data
