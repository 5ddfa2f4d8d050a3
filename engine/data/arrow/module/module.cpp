// What the library exports (arrow_module.h).

#include <arrow/config.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/arrow/arrow_module.h"
#include "engine/data/arrow/module/row_texts.h"
#include "engine/data/arrow/module/table_source.h"

namespace sherd::data {
namespace {

using arrow::Status;

constexpr std::size_t kTextBytes = std::size_t{1} << 20;
constexpr std::size_t kMostRows = 4096;

class Reader {
 public:
  Reader(const ArrowRequest& request, std::unique_ptr<TableSource> source)
      : source_(std::move(source)),
        is_texts_(request.column != nullptr),
        is_ids_(request.is_ids != 0) {}

  /// False at the end.
  arrow::Result<bool> next(ArrowTexts& texts) {
    bytes_.clear();
    ends_.clear();
    is_null_.clear();
    while (!is_at_end_ && bytes_.size() < kTextBytes && ends_.size() < kMostRows) {
      if (batch_ && row_ < batch_->num_rows()) {
        ARROW_RETURN_NOT_OK(append_row());
        continue;
      }
      ARROW_ASSIGN_OR_RAISE(batch_, source_->next());
      is_at_end_ = batch_ == nullptr;
      if (batch_) ARROW_RETURN_NOT_OK(check_batch(*batch_, is_texts_ && !is_ids_));
      row_ = 0;
    }
    texts = {.num_rows = static_cast<std::int64_t>(ends_.size()),
             .bytes = bytes_.data(),
             .ends = ends_.data(),
             .is_null = is_null_.data()};
    return !ends_.empty();
  }

 private:
  Status append_row() {
    bool is_null = false;
    if (is_ids_) {
      is_null = !append_ids(*batch_->column(0), row_, bytes_);
    } else if (is_texts_) {
      is_null = !append_text(*batch_->column(0), row_, bytes_);
    } else {
      ARROW_RETURN_NOT_OK(append_json(*batch_, row_, bytes_));
    }
    ends_.push_back(static_cast<std::int64_t>(bytes_.size()));
    is_null_.push_back(is_null ? 1 : 0);
    ++row_;
    return Status::OK();
  }

  std::unique_ptr<TableSource> source_;
  bool is_texts_, is_ids_;
  bool is_at_end_ = false;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t row_ = 0;
  std::string bytes_;
  std::vector<std::int64_t> ends_;
  std::vector<std::uint8_t> is_null_;
};

// One line.
void write(std::string text, ArrowError& error) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  text.resize(std::min(text.size(), sizeof(error.text) - 1));
  std::memcpy(error.text, text.c_str(), text.size() + 1);
}

// Our own messages are whole sentences; Arrow's say what is wrong with a file.
void write(const Status& status, ArrowError& error) {
  constexpr std::size_t kMostOfArrow = 300;
  const std::string& message = status.message();
  if (status.IsInvalid() && (message.ends_with("names the column of the text.") ||
                             message.ends_with("names the column of the ids."))) {
    return write(status.message(), error);
  }
  std::string text = status.message().substr(0, kMostOfArrow);
  while (text.ends_with('.') || text.ends_with('\n')) text.pop_back();
  write("can't be read (" + text + "); the file is damaged, cut short, or of another kind.", error);
}

template <class Value, class Call>
Value guarded(Value failed, ArrowError* error, const Call& call) {
  try {
    arrow::Result<Value> result = call();
    if (result.ok()) return *result;
    write(result.status(), *error);
  } catch (const std::bad_alloc&) {
    write("needs more memory than there is, or is damaged.", *error);
  } catch (const std::exception& exception) {  // Parquet's, for one
    write(Status::IOError(exception.what()), *error);
  }
  return failed;
}

void* open(const ArrowRequest* request, ArrowError* error) {
  return guarded<void*>(nullptr, error, [&]() -> arrow::Result<void*> {
    ARROW_ASSIGN_OR_RAISE(auto source, open_table(*request));
    return static_cast<void*>(new Reader(*request, std::move(source)));
  });
}

int next(void* reader, ArrowTexts* texts, ArrowError* error) {
  return guarded<int>(-1, error, [&]() -> arrow::Result<int> {
    ARROW_ASSIGN_OR_RAISE(const bool has_rows, static_cast<Reader*>(reader)->next(*texts));
    return has_rows ? 1 : 0;
  });
}

void close(void* reader) {
  delete static_cast<Reader*>(reader);
}

}  // namespace
}  // namespace sherd::data

extern "C" __attribute__((visibility("default"))) const sherd::data::ArrowModule*
sherd_arrow_module() {
  static const std::string version = arrow::GetBuildInfo().version_string;
  static const sherd::data::ArrowModule module = {.interface = sherd::data::kArrowInterface,
                                                  .arrow_version = version.c_str(),
                                                  .open = sherd::data::open,
                                                  .next = sherd::data::next,
                                                  .close = sherd::data::close};
  return &module;
}
