// Rates as text, as JSON, and in their file.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/small_file.h"
#include "engine/launch/cpu_rates.h"
#include "engine/launch/system_info.h"
#include "kernels/isa.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr std::int64_t kMostBytes = 1 << 16;

nlohmann::ordered_json json_of(const CpuKernelRates& rates) {
  return {{"matmul_flops", rates.matmul},
          {"attention_forward_flops", rates.attention_forward},
          {"attention_backward_flops", rates.attention_backward},
          {"element_bytes", rates.elements},
          {"norm_backward_bytes", rates.norm_backward}};
}

// A number of a file: one that a rate can have.
double rate_of(const nlohmann::json& json, const char* key) {
  const double rate = json.at(key).get<double>();
  if (!(rate > 0.0) || !(rate < 1e18)) throw std::out_of_range(key);
  return rate;
}

CpuKernelRates kernels_of(const nlohmann::json& json) {
  CpuKernelRates rates{.matmul = json.at("matmul_flops").get<std::vector<double>>(),
                       .attention_forward = rate_of(json, "attention_forward_flops"),
                       .attention_backward = rate_of(json, "attention_backward_flops"),
                       .elements = rate_of(json, "element_bytes"),
                       .norm_backward = rate_of(json, "norm_backward_bytes")};
  if (rates.matmul.size() != kCpuMatmulSizes.size() ||
      std::ranges::any_of(rates.matmul, [](double rate) { return !(rate > 0.0); })) {
    throw std::out_of_range("matmul_flops");
  }
  return rates;
}

std::string path_of_rates(const std::string& name) {
  if (const char* const named = std::getenv("SHERD_RATES")) return named;
  if (const char* const cache = std::getenv("XDG_CACHE_HOME")) {
    if (*cache != 0) return fmt::format("{}/sherd/{}", cache, name);
  }
  const char* const home = std::getenv("HOME");
  return home == nullptr || *home == 0 ? "" : fmt::format("{}/.cache/sherd/{}", home, name);
}

CpuRates this_processor() {
  return {.processor = processor_name(),
          .isa = std::string(kernels::name_of(kernels::isa())),
          .cores = num_usable_cores()};
}

// Readable, and different for different processors.
std::string file_name(const CpuRates& of) {
  std::string name = fmt::format("rates-{}-{}-{}.json", of.processor, of.isa, of.cores);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
  return name;
}

// Complete or not at all. What can't be written is measured again next time.
void write_rates(const std::string& path, const CpuRates& rates) {
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  {
    std::ofstream file(temporary);
    file << cpu_rates_json(rates);
    if (!file.good()) {
      fs::remove(temporary, ignored);
      return;
    }
  }
  std::error_code failed;
  fs::rename(temporary, path, failed);
  if (failed) fs::remove(temporary, ignored);
}

// Whether a file of rates may be written there: not over another file.
bool may_write(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return true;
  std::string problem;
  const auto text = read_small_file(path, kMostBytes, problem);
  return text && text->starts_with("{") && text->find("\"matmul_flops\"") != std::string::npos;
}

}  // namespace

std::string cpu_rates_json(const CpuRates& rates) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["processor"] = rates.processor;
  json["isa"] = rates.isa;
  json["cores"] = rates.cores;
  json["f32"] = json_of(rates.f32);
  json["bf16"] = json_of(rates.bf16);
  json["update_bytes"] = rates.update;
  json["add_bytes"] = rates.add;
  json["exchange_bytes"] = rates.exchange;
  json["call_s"] = rates.call;
  json["scaling"] = rates.scaling;
  json["memory_scaling"] = rates.memory_scaling;
  return json.dump(2) + "\n";
}

bool read_cpu_rates(const std::string& text, CpuRates& rates) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("version") != kVersion) return false;
    CpuRates read{.processor = json.at("processor"),
                  .isa = json.at("isa"),
                  .cores = json.at("cores"),
                  .f32 = kernels_of(json.at("f32")),
                  .bf16 = kernels_of(json.at("bf16")),
                  .update = rate_of(json, "update_bytes"),
                  .add = rate_of(json, "add_bytes"),
                  .exchange = rate_of(json, "exchange_bytes"),
                  .call = rate_of(json, "call_s"),
                  .scaling = rate_of(json, "scaling"),
                  .memory_scaling = rate_of(json, "memory_scaling")};
    if (read.cores < 1) return false;
    rates = std::move(read);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<CpuRates> known_cpu_rates() {
  const CpuRates here = this_processor();
  const std::string path = path_of_rates(file_name(here));
  if (path.empty()) return std::nullopt;
  std::string problem;
  const auto text = read_small_file(path, kMostBytes, problem);
  CpuRates known;
  if (!text || !read_cpu_rates(*text, known) || known.processor != here.processor ||
      known.isa != here.isa || known.cores != here.cores) {
    return std::nullopt;
  }
  return known;
}

CpuRates cpu_rates(bool measure_again) {
  if (!measure_again) {
    if (auto known = known_cpu_rates()) return *std::move(known);
  }
  CpuRates measured = measure_cpu_rates();
  const std::string path = path_of_rates(file_name(measured));
  if (!path.empty() && may_write(path)) write_rates(path, measured);
  return measured;
}

std::string cpu_rates_text(const CpuRates& rates) {
  std::string text = fmt::format("{}, {}, {} cores\n{:<26}{:>10}{:>10}\n", rates.processor,
                                 rates.isa, rates.cores, "one core", "f32", "bf16");
  const auto row = [&](const std::string& name, double f32, double bf16, double unit) {
    text += fmt::format("{:<26}{:>10.1f}{:>10.1f}\n", name, f32 / unit, bf16 / unit);
  };
  for (std::size_t i = 0; i < kCpuMatmulSizes.size(); ++i) {
    row(fmt::format("matmuls of {}, Gflop/s", kCpuMatmulSizes[i]), rates.f32.matmul[i],
        rates.bf16.matmul[i], 1e9);
  }
  row("attention, Gflop/s", rates.f32.attention_forward, rates.bf16.attention_forward, 1e9);
  row("  its backward", rates.f32.attention_backward, rates.bf16.attention_backward, 1e9);
  row("activations, GB/s", rates.f32.elements, rates.bf16.elements, 1e9);
  row("norms' backward, GB/s", rates.f32.norm_backward, rates.bf16.norm_backward, 1e9);
  const auto line = [&](std::string_view name, double value) {
    text += fmt::format("{:<26}{:>10.2f}\n", name, value);
  };
  line("optimizer, GB/s", rates.update / 1e9);
  line("sums of gradients, GB/s", rates.add / 1e9);
  line("between threads, GB/s", rates.exchange / 1e9);
  line("a kernel's call, us", rates.call * 1e6);
  line("all cores / one, matmuls", rates.scaling * rates.cores);
  line("all cores / one, memory", rates.memory_scaling * rates.cores);
  return text;
}

}  // namespace sherd::engine
