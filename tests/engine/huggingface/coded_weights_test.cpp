// Weights of 8 bits with scales of blocks, and layers that predict further tokens: as released folders
// of DeepSeek V3 have them.

#include "engine/huggingface/coded_weights.h"

#include "engine/huggingface/config.h"
#include "tests/engine/huggingface/folder_support.h"

namespace sherd::engine {
namespace {

json json_file(const std::string& name) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/huggingface/" + name);
  return json::parse(file);
}

TEST(CodedWeights, HaveTheNumbersThatTorchGivesTheirCodes) {
  const json values = json_file("e4m3.json");
  for (std::size_t code = 0; code < 256; ++code) {
    const float value = huggingface::value_of_e4m3(static_cast<std::uint8_t>(code));
    if (values[code].is_null()) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, values[code].get<float>()) << code;
    }
  }
}

constexpr std::int64_t kBlockRows = 16, kBlockColumns = 12;

struct TensorBytes {
  std::string type;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, TensorBytes>;

std::string file_of(const Tensors& tensors) {
  json::object_t header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = json(header).dump();
  return bytes_of_length(text.size()) + text + data;
}

// The tiny model twice: with the matrices of its layers as codes, and with their numbers.
struct Pair {
  Tensors coded, plain;
};

// A number of BF16, too.
float scale_of(std::int64_t block) {
  return std::ldexp(static_cast<float>(block % 128 + 1), -13);
}

Pair both_forms(const json& one) {
  const json numbers = json_file("e4m3.json");
  const json header = json::parse(one["header"].get<std::string>());
  Pair pair;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
    TensorBytes plain{"F32", shape, ""}, codes{"F8_E4M3", shape, ""}, scales{"F32", {}, ""};
    const bool is_coded = shape.size() == 2 && name.find("_proj") != std::string::npos;
    const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
    const std::int64_t per_row = (columns + kBlockColumns - 1) / kBlockColumns;
    for (std::int64_t i = 0; i < shape[0] * columns; ++i) {
      if (!is_coded) {
        append<float>(plain.bytes, weight_of(name, shape.size() == 1, i));
        continue;
      }
      auto code = static_cast<std::uint8_t>((i * 37 + 11) % 256);
      if ((code & 0x7f) == 0x7f) code = 3;  // no NaN
      const std::int64_t block = i / columns / kBlockRows * per_row + i % columns / kBlockColumns;
      const float scale = scale_of(block);
      codes.bytes += static_cast<char>(code);
      append<float>(plain.bytes, numbers[code].get<float>() * scale);
    }
    pair.plain[name] = plain;
    if (!is_coded) {
      pair.coded[name] = plain;
      continue;
    }
    scales.shape = {(shape[0] + kBlockRows - 1) / kBlockRows, per_row};
    for (std::int64_t b = 0; b < scales.shape[0] * per_row; ++b) {
      append<float>(scales.bytes, scale_of(b));
    }
    pair.coded[name] = codes;
    pair.coded[name + "_scale_inv"] = scales;
  }
  return pair;
}

class CodedFolder : public Folder {
 protected:
  void SetUp() override { write_tokens(); }
  std::string config(const json& more = json::object()) const {
    json config = json::parse(model_["config"].get<std::string>());
    config.update(more);
    return config.dump();
  }
  json codes() const {
    return {{"quantization_config",
             {{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {kBlockRows, kBlockColumns}}}}};
  }
  std::string write(const std::string& name, const std::string& config, const Tensors& tensors) {
    folder_.write(name + "/config.json", config);
    folder_.write(name + "/model.safetensors", file_of(tensors));
    return folder_.file(name);
  }
  double loss(const std::string& model) const {
    return evaluate_checkpoint(
               {model,
                {"data.format=bin", "data.validation_path=" + folder_.file("tokens.bin"),
                 fmt::format("training.seq_length={}", kTokens - 1)},
                1,
                {}})
        .loss;
  }
  const json model_ = json_file("experts.json").at("deepseek_v3");
  Pair pair_ = both_forms(model_);
};

TEST_F(CodedFolder, ComputesWithTheNumbersOfItsCodesTimesTheirBlocksScales) {
  const std::string coded = write("coded", config(codes()), pair_.coded);
  const std::string plain = write("plain", config(), pair_.plain);
  EXPECT_EQ(loss(coded), loss(plain));
}

TEST_F(CodedFolder, ReadsScalesOfTwoBytesAndTheFormatsLongName) {
  Tensors coded = pair_.coded;
  for (auto& [name, tensor] : coded) {
    if (!name.ends_with("_scale_inv")) continue;
    std::string high;  // bytes of each number, which are BF16's
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 4) high += tensor.bytes.substr(i + 2, 2);
    tensor = {"BF16", tensor.shape, high};
  }
  json form = codes();
  form["quantization_config"]["fmt"] = "float8_e4m3fn";
  EXPECT_EQ(loss(write("coded", config(form), coded)), loss(write("plain", config(), pair_.plain)));
}

TEST_F(CodedFolder, IsExportedWithoutCodesAndWithTheirNumbers) {
  const std::string coded = write("coded", config(codes()), pair_.coded);
  const std::string plain = write("plain", config(), pair_.plain);
  train(recipe(coded), "run", 3, 2);
  export_checkpoint({checkpoint("run"), folder_.file("out"), {}});
  EXPECT_FALSE(json::parse(folder_.read("out/config.json")).contains("quantization_config"));
  EXPECT_EQ(loss(folder_.file("out")), loss(plain));
}

TEST_F(CodedFolder, WithoutScalesOrWithOthersIsRefusedByTheTensorsName) {
  Tensors without = pair_.coded;
  const std::string name = "model.layers.0.mlp.down_proj.weight_scale_inv";
  without.erase(name);
  EXPECT_NE(test::error_text<Error>([&] { loss(write("a", config(codes()), without)); }).find(name),
            std::string::npos);
  Tensors other = pair_.coded;
  other[name].shape = {other[name].shape[1], other[name].shape[0]};
  const std::string error =
      test::error_text<Error>([&] { loss(write("b", config(codes()), other)); });
  EXPECT_NE(error.find("blocks of 16 x 12 need F32, BF16 or F16 [2, 4]"), std::string::npos)
      << error;
}

TEST_F(CodedFolder, OfAnotherFormIsRefused) {
  json more = codes();
  more["quantization_config"]["quant_method"] = "awq";
  const std::string error =
      test::error_text<Error>([&] { loss(write("c", config(more), pair_.coded)); });
  EXPECT_NE(error.find("quantized (quantization_config) in a form that isn't read"),
            std::string::npos)
      << error;
}

TEST_F(CodedFolder, LayersThatPredictFurtherTokensAreLeftOutAndOthersRefused) {
  const TensorBytes small{"F32", {2}, std::string(8, '\0')};
  Tensors tensors = pair_.plain;
  tensors["model.layers.2.eh_proj.weight"] = small;
  const std::string plain = write("plain", config(), pair_.plain);
  EXPECT_EQ(loss(write("mtp", config({{"num_nextn_predict_layers", 1}}), tensors)), loss(plain));
  tensors["model.layers.3.eh_proj.weight"] = small;
  const std::string error = test::error_text<Error>([&] {
    loss(write("two", config({{"num_nextn_predict_layers", 1}}), tensors));
  });
  EXPECT_NE(error.find("\"model.layers.3.eh_proj.weight\", which the model lacks"),
            std::string::npos)
      << error;
}

// gpt-oss's experts in 4 bits, upright; and the same numbers in the form without codes.
Pair both_forms_of_experts(const json& one) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const json header = json::parse(one["header"].get<std::string>());
  Pair pair;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
    TensorBytes plain{"F32", shape, ""};
    if (!name.ends_with("_proj") || name.find("experts") == std::string::npos) {
      std::int64_t numel = 1;
      for (const std::int64_t size : shape) numel *= size;
      for (std::int64_t i = 0; i < numel; ++i) {
        append<float>(plain.bytes, weight_of(name, shape.size() == 1, i));
      }
      pair.plain[name] = pair.coded[name] = plain;
      continue;
    }
    const std::int64_t E = shape[0], inputs = shape[1], outputs = shape[2];
    TensorBytes blocks{"U8", {E, outputs, inputs / 32, 16}, ""},
        scales{"U8", {E, outputs, inputs / 32}, ""};
    std::vector<float> numbers(static_cast<std::size_t>(E * inputs * outputs));
    for (std::int64_t row = 0; row < E * outputs; ++row) {
      for (std::int64_t block = 0; block < inputs / 32; ++block) {
        const auto exponent = static_cast<int>(118 + (row + block) % 4);
        scales.bytes += static_cast<char>(exponent);
        for (std::int64_t i = 0; i < 32; i += 2) {
          int byte = 0;
          for (std::int64_t half = 0; half < 2; ++half) {
            const std::int64_t input = block * 32 + i + half;
            const auto code = static_cast<int>((row * 31 + input * 7) % 16);
            byte |= code << (4 * half);
            const double value =
                (code >= 8 ? -1.0 : 1.0) * kValues[code % 8] * std::pow(2.0, exponent - 127);
            const std::int64_t e = row / outputs, output = row % outputs;
            numbers[static_cast<std::size_t>((e * inputs + input) * outputs + output)] =
                static_cast<float>(value);
          }
          blocks.bytes += static_cast<char>(byte);
        }
      }
    }
    for (const float number : numbers) append<float>(plain.bytes, number);
    pair.plain[name] = plain;
    pair.coded[name + "_blocks"] = blocks;
    pair.coded[name + "_scales"] = scales;
  }
  return pair;
}

// With feed-forward rows that 32 divides, which the tiny model of the other tests hasn't.
json wide_experts() {
  json one = json_file("experts.json").at("gpt_oss");
  json config = json::parse(one["config"].get<std::string>());
  config["intermediate_size"] = 64;
  json header = json::parse(one["header"].get<std::string>());
  for (auto& [name, entry] : header.items()) {
    if (name.ends_with("gate_up_proj")) entry["shape"] = {6, 32, 128};
    if (name.ends_with("gate_up_proj_bias")) entry["shape"] = {6, 128};
    if (name.ends_with("down_proj")) entry["shape"] = {6, 64, 32};
  }
  one["config"] = config.dump();
  one["header"] = header.dump();
  return one;
}

class FourBitFolder : public CodedFolder {
 protected:
  std::string config(const json& more = json::object()) const {
    json config = json::parse(wide_["config"].get<std::string>());
    config.update(more);
    return config.dump();
  }
  const json wide_ = wide_experts();
  Pair experts_ = both_forms_of_experts(wide_);
  const json mxfp4_ = {
      {"quantization_config",
       {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.layers.*.self_attn"}}}}};
};

TEST_F(FourBitFolder, ComputesWithTheNumbersOfItsCodesTimesTheirScales) {
  const std::string coded = write("coded", config(mxfp4_), experts_.coded);
  const std::string plain = write("plain", config(), experts_.plain);
  EXPECT_EQ(loss(coded), loss(plain));
}

TEST_F(FourBitFolder, IsExportedWithoutCodesInTheFormThatTransformersWrites) {
  const std::string coded = write("coded", config(mxfp4_), experts_.coded);
  const std::string plain = write("plain", config(), experts_.plain);
  train(recipe(coded, "moe: {balance_loss: 0}\n"), "run", 2, 2);
  export_checkpoint({checkpoint("run"), folder_.file("out"), {}});
  EXPECT_FALSE(json::parse(folder_.read("out/config.json")).contains("quantization_config"));
  EXPECT_EQ(loss(folder_.file("out")), loss(plain));
}

TEST_F(FourBitFolder, WithOtherScalesOrNoneIsRefusedByTheTensorsName) {
  Tensors other = experts_.coded;
  const std::string name = "model.layers.1.mlp.experts.down_proj_scales";
  other[name].shape = {6, 16, 4};
  const std::string error =
      test::error_text<Error>([&] { loss(write("a", config(mxfp4_), other)); });
  EXPECT_NE(error.find(name), std::string::npos) << error;
  EXPECT_NE(error.find("need U8 [6, 32, 2]"), std::string::npos) << error;
  other.erase(name);
  EXPECT_NE(
      test::error_text<Error>([&] { loss(write("b", config(mxfp4_), other)); }).find("missing"),
      std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
