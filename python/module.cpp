// The Python module sherd._sherd: include/sherd/ as Python sees it. python/sherd/_sherd.pyi lists its names.
//
// Calls that compute release the interpreter's lock, so other threads run meanwhile. Callbacks take it
// again; what they raise ends the call and reaches Python unchanged.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <utility>

#include "bindings.h"
#include "sherd/sherd.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Python hears of Ctrl-C on the calling thread alone, so another one works. After Ctrl-C, `ends` says
// that it should end.
template <class Call>
auto until_ctrl_c(std::atomic<bool>& ends, const Call& call) {
  constexpr std::chrono::milliseconds kBetween{50};
  std::optional<nb::python_error> raised;
  const nb::gil_scoped_release released;
  auto result = std::async(std::launch::async, call);
  while (result.wait_for(kBetween) != std::future_status::ready) {
    if (ends) continue;
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() == 0) continue;
    raised.emplace();
    ends = true;
  }
  auto texts = result.get();
  if (!raised) return texts;
  const nb::gil_scoped_acquire locked;
  throw nb::python_error(std::move(*raised));
}

// A text in quotes, so that YAML takes every character as it is.
std::string quoted(const std::string& text) {
  std::string quotes = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quotes += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr const char* kDigits = "0123456789abcdef";
      quotes += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      quotes += c;
    }
  }
  return quotes + "\"";
}

std::string text_of_item(const nb::handle& value);

// A value of Python as --set writes it.
std::string text_of_value(const nb::handle& value) {
  if (value.is_none()) return "";
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "true" : "false";
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    std::string text;
    const char* between = "";
    for (const nb::handle item : value) {
      text += std::exchange(between, ", ") + text_of_item(item);
    }
    return "[" + text + "]";
  }
  if (nb::isinstance<nb::dict>(value)) {
    std::string text;
    const char* between = "";
    for (const auto& [key, item] : nb::cast<nb::dict>(value)) {
      text += std::exchange(between, ", ") + text_of_item(key) + ": " + text_of_item(item);
    }
    return "{" + text + "}";
  }
  return nb::cast<std::string>(nb::str(value));
}

// A text that is a number stays one, as in what a command line gives.
bool is_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != text.npos) return false;
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return *end == '\0';
}

std::string text_of_item(const nb::handle& value) {
  if (value.is_none()) return "null";
  const bool is_path = nb::hasattr(value, "__fspath__");
  if (!is_path && !nb::isinstance<nb::str>(value)) return text_of_value(value);
  const std::string text = nb::cast<std::string>(nb::str(value));
  return is_number(text) ? text : quoted(text);
}

void bind_errors(nb::module_& m) {
  // From the most general on: the newest that fits an exception converts it.
  auto error = nb::exception<sherd::Error>(m, "Error", PyExc_RuntimeError);
  error.attr("__doc__") = "An error of Sherd, with the sentence that the program prints.";
  auto usage = nb::exception<sherd::UsageError>(m, "UsageError", error.ptr());
  usage.attr("__doc__") = "What was asked for can't be done: an unknown key, a wrong value.";
  auto data = nb::exception<sherd::DataError>(m, "DataError", error.ptr());
  data.attr("__doc__") = "A file is missing, damaged, or not what it should be.";
  auto peer = nb::exception<sherd::PeerError>(m, "PeerError", error.ptr());
  peer.attr("__doc__") = "Another rank has stopped, or didn't answer.";
  auto training = nb::exception<sherd::TrainingError>(m, "TrainingError", error.ptr());
  training.attr("__doc__") = "The training can't continue, such as a loss that isn't finite.";
}

void bind_recipe(nb::module_& m) {
  nb::class_<sherd::Recipe>(m, "Recipe",
                            "A training, described completely: model, data, optimizer, ranks.")
      .def_static(
          "load", [](const Path& path) { return sherd::Recipe::load(path.string()); }, "path"_a,
          "Reads a recipe's file.")
      .def_static("parse", &sherd::Recipe::parse, "yaml"_a, "name"_a = "recipe",
                  "Takes the text of a recipe. `name` is what errors call it.")
      .def(
          "set",
          [](sherd::Recipe& recipe, const std::string& key, const nb::object& value)
              -> sherd::Recipe& { return recipe.set(key, text_of_value(value)); },
          "key"_a, "value"_a, nb::rv_policy::reference,
          "Sets a key such as \"training.max_steps\". Returns the recipe itself.")
      .def("set_ranks", &sherd::Recipe::set_ranks, "ranks"_a, nb::rv_policy::reference,
           "Sets the number of ranks that shard state. Returns the recipe itself.")
      .def(
          "copy", [](const sherd::Recipe& recipe) { return recipe; }, "An independent copy.")
      .def("check", &sherd::Recipe::check, Released(),
           "Raises a UsageError with one line for each problem, if there are any.")
      .def("get", &sherd::Recipe::get, "key"_a, Released(),
           "A key's value as text, with defaults filled in.")
      .def("yaml", &sherd::Recipe::yaml, Released(),
           "The whole recipe; each value with its origin as a comment.")
      .def_prop_ro("notes", &sherd::Recipe::notes, "What a user should know, one line each.");
}

void bind_plan(nb::module_& m) {
  nb::class_<sherd::RankMemory>(m, "RankMemory", "Memory of one rank, in bytes.")
      .def_ro("device_bytes", &sherd::RankMemory::device_bytes)
      .def_ro("host_bytes", &sherd::RankMemory::host_bytes)
      .def_ro("disk_bytes", &sherd::RankMemory::disk_bytes);
  nb::class_<sherd::Plan>(m, "Plan", "What a recipe needs: memory of each rank, to the byte.")
      .def_ro("num_parameters", &sherd::Plan::num_parameters)
      .def_ro("num_trained_parameters", &sherd::Plan::num_trained_parameters)
      .def_ro("ranks", &sherd::Plan::ranks)
      .def_ro("worst_rank", &sherd::Plan::worst_rank)
      .def_prop_ro("peak_by_category",
                   [](const sherd::Plan& plan) {
                     return std::map<std::string, std::int64_t>(plan.peak_by_category.begin(),
                                                                plan.peak_by_category.end());
                   })
      .def_ro("needed_bytes", &sherd::Plan::needed_bytes)
      .def_ro("limit_bytes", &sherd::Plan::limit_bytes)
      .def_ro("fits", &sherd::Plan::fits)
      .def_ro("sent_bytes", &sherd::Plan::sent_bytes)
      .def_ro("json", &sherd::Plan::json)
      .def_ro("text", &sherd::Plan::text)
      .def("__repr__", [](const sherd::Plan& plan) { return plan.text; });
  m.def(
      "plan",
      [](const sherd::Recipe& recipe, std::int64_t device_memory_bytes, int ranks_per_machine) {
        return sherd::plan(recipe, {.device_memory_bytes = device_memory_bytes,
                                    .ranks_per_machine = ranks_per_machine});
      },
      "recipe"_a, "device_memory_bytes"_a = 0, "ranks_per_machine"_a = 0, Released(),
      "What a recipe needs. Reads no data and allocates nothing.");
}

// Memory that Python owns, filled without the interpreter's lock.
using Array = nb::ndarray<nb::numpy, float>;

Array read_tensor(const sherd::Checkpoint& checkpoint, const std::string& name,
                  const std::string& kind) {
  for (const sherd::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.name != name || tensor.kind != kind) continue;
    const auto count = static_cast<std::size_t>(tensor.num_elements());
    auto memory = std::make_unique<float[]>(count);
    {
      const nb::gil_scoped_release released;
      checkpoint.read_floats(name, kind, memory.get(), tensor.num_elements());
    }
    float* data = memory.release();
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    const std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.end());
    return {data, shape.size(), shape.data(), owner};
  }
  checkpoint.read_floats(name, kind);  // says what is wrong
  return {};
}

void bind_checkpoint(nb::module_& m) {
  nb::class_<sherd::TensorInfo>(m, "TensorInfo", "Name, kind, type and shape of a stored tensor.")
      .def_ro("name", &sherd::TensorInfo::name)
      .def_ro("kind", &sherd::TensorInfo::kind)
      .def_ro("dtype", &sherd::TensorInfo::dtype)
      .def_prop_ro(
          "shape",
          [](const sherd::TensorInfo& tensor) { return nb::tuple(nb::cast(tensor.shape)); })
      .def("__repr__", [](const sherd::TensorInfo& tensor) {
        return "<sherd.TensorInfo: " + tensor.name + " (" + tensor.kind + ", " + tensor.dtype +
               ")>";
      });
  nb::class_<sherd::Checkpoint>(
      m, "Checkpoint", "A checkpoint on disk. Its tensors are whole, whatever has saved them.")
      .def(
          "__init__",
          [](sherd::Checkpoint* self, const Path& path) {
            new (self) sherd::Checkpoint(path.string());
          },
          "path"_a)
      .def_prop_ro("path", &sherd::Checkpoint::path)
      .def_prop_ro("step", &sherd::Checkpoint::step)
      .def_prop_ro("tensors", &sherd::Checkpoint::tensors)
      .def("json", &sherd::Checkpoint::json, "What `sherd inspect --json` prints.")
      .def("counters_json", &sherd::Checkpoint::counters_json,
           "Counters and settings of the run, as JSON.")
      .def("recipe", &sherd::Checkpoint::recipe, "The run's recipe, as text.")
      .def("read", &read_tensor, "name"_a, "kind"_a = "param",
           "A tensor as a numpy array of float32; every byte is compared with its checksum.");
}

void bind_models(nb::module_& m) {
  nb::class_<sherd::ModelInfo>(m, "ModelInfo", "What a Hugging Face folder's config.json says.")
      .def_ro("model_type", &sherd::ModelInfo::model_type)
      .def_ro("num_parameters", &sherd::ModelInfo::num_parameters)
      .def_ro("dtype", &sherd::ModelInfo::dtype)
      .def_prop_ro("recipe_values",
                   [](const sherd::ModelInfo& info) {
                     return std::map<std::string, std::string>(info.recipe_values.begin(),
                                                               info.recipe_values.end());
                   })
      .def_ro("unused", &sherd::ModelInfo::unused);
  nb::class_<sherd::ExportedModel>(m, "ExportedModel", "What an export has written.")
      .def_ro("num_tensors", &sherd::ExportedModel::num_tensors)
      .def_ro("num_files", &sherd::ExportedModel::num_files)
      .def_ro("bytes", &sherd::ExportedModel::bytes)
      .def_ro("dtype", &sherd::ExportedModel::dtype);
  m.def(
      "read_model_folder",
      [](const Path& folder) { return sherd::read_model_folder(folder.string()); }, "folder"_a,
      "Reads a Hugging Face folder's config.json.");
  m.def(
      "export_model",
      [](const Path& checkpoint, const Path& folder, const std::string& dtype, bool merge,
         bool average, std::int64_t shard_bytes, std::int64_t ranks) {
        return sherd::export_model(checkpoint.string(), folder.string(),
                                   {dtype, merge, average, shard_bytes, ranks});
      },
      "checkpoint"_a, "folder"_a, "dtype"_a = "", "merge"_a = false, "average"_a = false,
      "shard_bytes"_a = 0, "ranks"_a = 0, Released(),
      "Writes a checkpoint as a Hugging Face folder, which must not exist.");
  nb::class_<sherd::GeneratedText>(m, "GeneratedText", "The text after a prompt.")
      .def_prop_ro("text", [](const sherd::GeneratedText& text) { return readable(text.text); })
      .def_ro("num_tokens", &sherd::GeneratedText::num_tokens)
      .def_ro("end", &sherd::GeneratedText::end)
      .def("__repr__", [](const sherd::GeneratedText& text) {
        return "<sherd.GeneratedText: " + std::to_string(text.num_tokens) + " tokens>";
      });
  const auto options_of = [](std::int64_t num_tokens, double temperature, std::int64_t top_k,
                             double top_p, std::uint64_t seed, std::vector<std::string> stops,
                             bool ignore_end_tokens, std::int64_t ranks, bool average,
                             std::vector<std::string> sets) {
    return sherd::GenerationOptions{
        num_tokens,        temperature, top_k,   top_p,           seed, std::move(stops),
        ignore_end_tokens, ranks,       average, std::move(sets), {}};
  };
  m.def(
      "generate",
      [options_of](const Path& model, const std::vector<std::string>& prompts,
                   std::int64_t num_tokens, double temperature, std::int64_t top_k, double top_p,
                   std::uint64_t seed, std::vector<std::string> stops, bool ignore_end_tokens,
                   std::int64_t ranks, bool average, std::vector<std::string> sets) {
        sherd::GenerationOptions options =
            options_of(num_tokens, temperature, top_k, top_p, seed, std::move(stops),
                       ignore_end_tokens, ranks, average, std::move(sets));
        std::atomic<bool> ends = false;
        options.wants_more = [&ends] { return !ends; };
        return until_ctrl_c(ends,
                            [&] { return sherd::generate(model.string(), prompts, options); });
      },
      "model"_a, "prompts"_a, "num_tokens"_a = 200, "temperature"_a = 0.8, "top_k"_a = 0,
      "top_p"_a = 1.0, "seed"_a = 0, "stops"_a = std::vector<std::string>(),
      "ignore_end_tokens"_a = false, "ranks"_a = 1, "average"_a = false,
      "sets"_a = std::vector<std::string>(),
      "One text for each prompt, from a checkpoint, a run or a Hugging Face folder.");
}

void bind_tokenizer(nb::module_& m) {
  nb::class_<sherd::Tokenizer>(m, "Tokenizer",
                               "Text to token ids and back, by a Hugging Face tokenizer.json.")
      .def(
          "__init__",
          [](sherd::Tokenizer* self, const Path& folder) {
            new (self) sherd::Tokenizer(folder.string());
          },
          "folder"_a)
      .def(
          "encode",
          [](const sherd::Tokenizer& tokenizer, const std::string& text, bool add_beginning,
             bool special_tokens) {
            return tokenizer.encode(text, {add_beginning, special_tokens});
          },
          "text"_a, "add_beginning"_a = false, "special_tokens"_a = true, Released(),
          "The ids of a text.")
      .def("decode", &sherd::Tokenizer::decode, "ids"_a, "skip_special"_a = true, Released(),
           "The text of ids.")
      .def_prop_ro("vocab_size", &sherd::Tokenizer::vocab_size)
      .def("id_of", &sherd::Tokenizer::id_of, "token"_a)
      .def("token_of", &sherd::Tokenizer::token_of, "id"_a)
      .def_prop_ro("beginning", &sherd::Tokenizer::beginning)
      .def_prop_ro("end", &sherd::Tokenizer::end);
}

}  // namespace

NB_MODULE(_sherd, m) {
  m.doc() = "include/sherd/ for Python; import sherd instead.";
  m.attr("__version__") = sherd::version();
  bind_errors(m);
  bind_recipe(m);
  bind_plan(m);
  bind_results(m);
  bind_trainer(m);
  bind_checkpoint(m);
  bind_models(m);
  bind_tokenizer(m);
}
