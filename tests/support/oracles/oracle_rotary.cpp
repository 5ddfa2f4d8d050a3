#include "tests/support/oracles/oracle_rotary.h"

#include <cmath>

namespace sherd::oracle {

Values rotary_table(std::int64_t positions, std::int64_t head_width, double theta) {
  Values table(static_cast<std::size_t>(positions * head_width));
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t j = 0; j < head_width / 2; ++j) {
      const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(head_width);
      const double angle = static_cast<double>(p) * std::pow(theta, exponent);
      table[static_cast<std::size_t>(p * head_width + j)] = std::cos(angle);
      table[static_cast<std::size_t>(p * head_width + head_width / 2 + j)] = std::sin(angle);
    }
  }
  return table;
}

Values rotary(const kernels::Rotary& args, const Values& table, Values qkv) {
  const std::int64_t H = args.query_heads, G = args.kv_heads, K = args.head_width;
  for (std::int64_t t = 0; t < args.sequences * args.positions; ++t) {
    for (std::int64_t head = 0; head < H + G; ++head) {
      for (std::int64_t j = 0; j < K / 2; ++j) {
        const std::int64_t row = (t % args.positions) * K;
        const double cosine = table[static_cast<std::size_t>(row + j)];
        const double sine =
            table[static_cast<std::size_t>(row + K / 2 + j)] * (args.inverse ? -1.0 : 1.0);
        double& a = qkv[static_cast<std::size_t>((t * (H + 2 * G) + head) * K + j)];
        double& b = qkv[static_cast<std::size_t>((t * (H + 2 * G) + head) * K + K / 2 + j)];
        const double rotated = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = rotated;
      }
    }
  }
  return qkv;
}

}  // namespace sherd::oracle
