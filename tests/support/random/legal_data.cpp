// What a legal recipe trains on, and where it writes.

#include <fmt/format.h>

#include "tests/support/random/legal_recipe.h"

namespace sherd::testing {
namespace {

// What chars finds in chars.txt: this many different characters, two of them beyond ASCII.
constexpr std::int64_t kCharacters = 12;
constexpr std::int64_t kTokenizerSize = 259;  // small_tokenizer.h

}  // namespace

void LegalRecipe::text() {
  const std::string format = random_.one_of({"bytes", "chars", "bin", "text", "chat"});
  set("data.format", format);
  const bool words = format == "bytes" || format == "text" || format == "chat";
  const std::string file = format == "chat" ? "chat" : words ? "bytes" : format;
  const std::string ending = format == "chat" ? ".jsonl" : ".txt";
  const bool folder = words && format != "chat" && random_.chance(0.5);
  set("data.path", quoted(folder_.file(folder ? "texts" : file + ending)));
  // Raw tokens don't say where documents end, and conversations are documents.
  if (format == "bin") maybe("data.documents", "joined");
  if (format == "chat") maybe("data.documents", "separate");
  if (format == "chat") set("training.train_on", "all");
  if (format == "chat") set("data.unfit", "cut");
  set("model.vocab_size", format == "chars"   ? kCharacters
                          : format == "bytes" ? random_.whole(128, 300)
                          : words             ? random_.whole(kTokenizerSize, 300)
                                              : random_.whole(kLargestId + 1, 300));
  leave("data.tokenizer");
  if (format == "text") set("data.tokenizer", quoted(folder_.file("tokenizer")));
  if (format == "chat") set("data.tokenizer", quoted(folder_.file("chat_tokenizer")));
  leave("model.add_special_tokens");
  const bool encodes = format == "text" || format == "chat";
  if (encodes && random_.chance(0.3)) {
    set("model.vocab_size", random_.whole(kTokenizerSize + 2, 300));
    set("model.add_special_tokens", "[<|new|>, \"→\"]");
  }
  leave("data.token_bytes");
  if (format == "bin") maybe("data.token_bytes", 2);  // of raw files, as these are
  for (const char* list : {"data.sources", "data.stages", "data.validation_sets"}) leave(list);
  leave("data.validation_path");
  leave("data.validation_fraction");
  if (random_.chance(0.3)) {
    set("data.validation_path", quoted(folder_.file(file + ".validation" + ending)));
  } else {
    maybe("data.validation_fraction", random_.one_of({"0", "0.1", "0.3"}));
  }
  // One document can't be both trained on and held out.
  const auto documents = settings_.find("data.documents");
  const bool apart = documents != settings_.end() && documents->second == "separate";
  if (apart && !folder && format != "chat" && !settings_.contains("data.validation_path")) {
    set("data.validation_fraction", "0");
  }
  maybe("training.sample_prompt", words               ? quoted("the \\\"fox\\\"")
                                  : format == "chars" ? quoted("héße")
                                                      : quoted("1 2 96"));
  maybe("training.sample_tokens", random_.whole(0, 8));
  maybe("training.sample_temperature", random_.one_of({"0", "0.8", "1000", "1e-3"}));
  maybe("training.sample_top_k", random_.one_of({"0", "1", "5", "16777216"}));
}

void LegalRecipe::names(const std::string& output) {
  set("run.output_dir", quoted(folder_.file(output)));
  maybe("run.name",
        random_.one_of({"tiny", "\"a name: with # and 'quotes'\"", "\"\\u00e9\"", "\"-\""}));
  set("run.device", random_.one_of({"auto", "cpu"}));
  maybe("run.num_threads", random_.whole(0, 3));
  maybe("memory.device_memory", random_.one_of({"\"\"", "64GiB", "1TB", "9000000000B"}));
  leave("checkpoint.init_from");
  maybe("adapter.type", "none");
  leave("adapter.base_dtype");
  maybe("checkpoint.resume", random_.one_of({"auto", "never"}));
  maybe("checkpoint.max_minutes", random_.one_of({"0", "1e5"}));
}

// Pairs or judged answers in place of conversations, with all that rules then ask for.
void LegalRecipe::preferences() {
  for (const char* key : {"loss", "beta", "label_smoothing", "simpo_gamma", "desirable_weight",
                          "undesirable_weight"}) {
    leave(fmt::format("preference.{}", key));
  }
  if (value_of("data.format", "bytes") != "chat" || random_.chance(0.4)) return;
  if (value_of("parallelism.context_parallel_degree", "1") != "1") return;
  const std::string loss = random_.one_of(
      {"sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "orpo", "simpo", "kto"});
  const std::string rows = loss == "kto" ? "judged" : "pairs";
  set("preference.loss", loss);
  maybe("preference.beta", random_.one_of({"0.01", "0.1", "2"}));
  maybe("preference.label_smoothing", random_.one_of({"0", "0.1"}));
  maybe("preference.simpo_gamma", random_.one_of({"0", "1"}));
  maybe("preference.desirable_weight", random_.one_of({"1", "1.5"}));
  maybe("preference.undesirable_weight", random_.one_of({"0", "1"}));
  set("data.path", quoted(folder_.file(rows + ".jsonl")));
  if (settings_.contains("data.validation_path")) {
    set("data.validation_path", quoted(folder_.file(rows + ".validation.jsonl")));
  }
  set("data.unfit", "drop");
  set("model.dropout", "0");
  for (const char* key : {"training.train_on", "adapter.dropout", "training.z_loss_multiplier",
                          "metrics.source_losses", "model.max_seq_length"}) {
    leave(key);
  }
  length_ = random_.whole(40, 64);
  set("training.seq_length", length_);
}

// The test writes the file before it trains.
void LegalRecipe::distillation() {
  for (const char* key : {"teacher", "top_k", "weight", "temperature"}) {
    leave(fmt::format("distillation.{}", key));
  }
  const bool has_stages = settings_.contains("data.stages");
  if (has_stages || settings_.contains("preference.loss") ||
      value_of("training.z_loss_multiplier", "0") != "0" ||
      value_of("bad_steps.skip_data_steps", "0") != "0" || random_.chance(0.75)) {
    return;
  }
  set("distillation.teacher", quoted(folder_.file("teacher.safetensors")));
  set("distillation.top_k", random_.whole(1, 3));
  maybe("distillation.weight", random_.one_of({"0", "0.5", "1"}));
  maybe("distillation.temperature", random_.one_of({"0.5", "1", "2"}));
}

}  // namespace sherd::testing
