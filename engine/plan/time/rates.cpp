#include "engine/plan/time/rates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace sherd::engine {

GpuStepRates::GpuStepRates(GpuRates rates, bool allow_tf32)
    : rates_(std::move(rates)), tf32_(allow_tf32) {
  name = rates_.name;
  stated_flops = rates_.stated_flops;
}

double GpuStepRates::seconds(const ServerExchange& /*exchange*/) const {
  SHERD_CHECK(false, "a parameter server on {}", name);
  __builtin_unreachable();
}

namespace {

// A network card of a machine without GPUs, 10 Gbit/s: an assumption, as is its latency.
constexpr ClusterLink kUsualCard{.bytes = 1.25e9, .latency = 50e-6};
// What a step takes in addition to kernels that are timed alone, in warm caches: fitted to one
// recipe, recipes/quickstart.yaml on one thread (docs/benchmarks.md has the others).
constexpr double kWholeStep = 1.08;
// Of a barrier between threads: an assumption.
constexpr double kSecondsOfABarrier = 5e-6;

// Over the logarithm of a matmul's flops; beyond the measured sizes as the nearest.
double matmul_rate(const CpuKernelRates& rates, double flops) {
  const auto flops_of = [](std::size_t i) {
    const double n = kCpuMatmulSizes[i];
    return 2.0 * n * n * n;
  };
  if (flops <= flops_of(0)) return rates.matmul.front();
  for (std::size_t i = 1; i < kCpuMatmulSizes.size(); ++i) {
    if (flops > flops_of(i)) continue;
    const double part = std::log(flops / flops_of(i - 1)) / std::log(flops_of(i) / flops_of(i - 1));
    return rates.matmul[i - 1] + part * (rates.matmul[i] - rates.matmul[i - 1]);
  }
  return rates.matmul.back();
}

}  // namespace

CpuStepRates::CpuStepRates(CpuRates rates, Ranks ranks, const CpuLinks& links)
    : rates_(std::move(rates)), links_(links) {
  const auto usual = [](ClusterLink& link, const ClusterLink& otherwise) {
    if (link.bytes == 0.0) link.bytes = otherwise.bytes;
    if (link.latency == 0.0) link.latency = otherwise.latency;
  };
  usual(links_.between, kUsualCard);
  usual(links_.servers, links_.between);
  name = fmt::format("{}, {}, {} cores, measured here", rates_.processor, rates_.isa, rates_.cores);
  const double cores = rates_.cores;
  const double busy = std::min(cores, static_cast<double>(ranks.here * ranks.threads));
  cores_ = busy / ranks.here;
  // One core scales by 1, all of them as measured.
  const auto of_busy = [&](double all) {
    return cores > 1.0 ? std::pow(all, std::log(busy) / std::log(cores)) : 1.0;
  };
  scaling_ = of_busy(rates_.scaling);
  memory_scaling_ = of_busy(rates_.memory_scaling);
}

double CpuStepRates::seconds(const Launch& launch) const {
  const CpuKernelRates& of = size_of(launch.dtype) == 2 ? rates_.bf16 : rates_.f32;
  if (launch.kind == LaunchKind::kMatmul) {
    return kWholeStep * launch.flops / (cores_ * scaling_ * matmul_rate(of, launch.flops)) +
           rates_.call;
  }
  if (launch.kind == LaunchKind::kAttention) {
    const double rate = launch.backward ? of.attention_backward : of.attention_forward;
    return kWholeStep * launch.flops / (cores_ * scaling_ * rate) + rates_.call;
  }
  const auto bytes = static_cast<double>(launch.read + launch.written);
  const double rate = launch.kernel == "norm_backward" ? of.norm_backward
                      : launch.kernel == "update"      ? rates_.update
                      : launch.kernel == "add"         ? rates_.add
                                                       : of.elements;
  return kWholeStep * bytes / (cores_ * memory_scaling_ * rate) + rates_.call;
}

namespace {

// Bytes of a rank that leave its machine (machine_traffic.h): to each rank elsewhere, or once to each
// other machine.
double leaving(const GroupExchange& exchange, const CpuLinks& links) {
  const auto& [collective, bytes, n, machines, at_once] = exchange;
  const double slice = bytes / n, elsewhere = n - n / machines;
  const double gathered = links.passed_on ? machines - 1.0 : elsewhere;
  const bool adds = links.of_added > 0.0 && n > machines && std::fmod(n, machines) == 0.0;
  const double added = adds ? links.of_added * (machines - 1.0) : elsewhere;
  if (collective == "broadcast") return bytes;
  if (collective == "all_gather") return slice * gathered;
  if (collective == "all_reduce") return slice * (gathered + added);
  return slice * (collective == "reduce_scatter" ? added : elsewhere);
}

}  // namespace

double CpuStepRates::seconds(const GroupExchange& exchange) const {
  const auto& [collective, bytes, n, machines, at_once] = exchange;
  const double on_wire = (collective == "all_reduce" ? 2.0 : 1.0) * bytes *
                         (collective == "broadcast" ? 1.0 : (n - 1.0) / n);
  const auto over = [&](const ClusterLink& link, double sent) {
    return link.latency * (n - 1.0) + sent / link.bytes;
  };
  const double here = links_.within.bytes > 0.0 ? over(links_.within, on_wire)
                                                : kSecondsOfABarrier + on_wire / rates_.exchange;
  if (machines <= 1.0) return here;
  return std::max(here, over(links_.between, at_once * leaving(exchange, links_)));
}

double CpuStepRates::seconds(const ServerExchange& exchange) const {
  const double most = std::max(exchange.bytes, exchange.bytes_of_a_server);
  const double here = kSecondsOfABarrier + most / rates_.exchange;
  if (!links_.servers_elsewhere) return here;
  const ClusterLink &worker = links_.between, &server = links_.servers;
  return std::max(
      here, exchange.partners * std::max(worker.latency, server.latency) +
                std::max(exchange.bytes / worker.bytes, exchange.bytes_of_a_server / server.bytes));
}

// Copies between threads take a core's time, which another thread of the rank would use.
double CpuStepRates::taken_by_exchanges() const {
  return 0.5;
}

GpuRates trained_gpu(GpuRates rates) {
  if (rates.name.starts_with("A100")) {
    rates.matmul_share = 0.83;
    rates.attention_share = 0.81;
    rates.memory_share = 0.76;
    rates.exchange_share = 0.92;
    rates.links.card_share = 0.52;
  } else {  // H100; H200 likewise, an assumption
    rates.matmul_share = 1.0;
    rates.attention_share = 0.83;
    rates.memory_share = 0.95;
    rates.exchange_share = 0.83;
  }
  return rates;
}

}  // namespace sherd::engine
