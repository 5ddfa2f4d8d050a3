#include "tests/fake_cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/device_common/number.h"
#include "kernels/dispatch_float.h"
#include "kernels/philox.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::HeadRows;

template <class T>
class View {
 public:
  View(void* data, const HeadRows& rows, std::int64_t width)
      : data_(static_cast<T*>(data)), rows_(rows), width_(width) {}
  T* at(std::int64_t b, std::int64_t head, std::int64_t row) const {
    return data_ + b * rows_.sequence + head * width_ + row * rows_.row;
  }

 private:
  T* data_;
  HeadRows rows_;
  std::int64_t width_;
};

template <class T>
class Computation {
 public:
  Computation(const AttentionGraphKey& key, const AttentionPointers& pointers)
      : s_(key.shape),
        causal_(key.views().causal),
        n_(s_.num_keys()),
        K_(s_.head_width),
        V_(key.views().v.width),
        scale_(s_.score_scale()),
        dropout_{.probability = key.dropout, .address = {}},
        pointers_(pointers),
        views_(key.views()) {}

  void forward() const {
    const auto out = rows(kOut, views_.out_written);
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      std::vector<double> score = scores(b, h, i);
      double sum = 0.0, most = score[0];
      for (const double x : score) most = std::max(most, x);
      for (const double x : score) sum += std::exp(x - most);
      statistic(b, h, i) = static_cast<float>(most + std::log(sum));
      for (std::int64_t c = 0; c < V_; ++c) {
        double value = 0.0;
        for (std::int64_t j = 0; j < std::ssize(score); ++j) {
          const double p = std::exp(score[static_cast<std::size_t>(j)] - most) / sum;
          value += p * kept(b, h, i, j) * number(value_of(b, h, j)[c]);
        }
        out.at(b, h, i)[c] = device_common::narrow<T>(static_cast<float>(value));
      }
      poison(out.at(b, h, i));
    });
  }

  void backward() const {
    const auto out = rows(kOut, views_.out), dout = rows(kDout, views_.dout);
    const std::int64_t H = s_.query_heads, G = s_.kv_heads;
    std::vector<double> dq(elements(H)), dk(elements(G)), dv(elements(G));
    const auto row = [&](std::vector<double>& sums, std::int64_t heads, std::int64_t b,
                         std::int64_t head, std::int64_t i) {
      return sums.data() + ((b * heads + head) * n_ + i) * K_;
    };
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const std::vector<double> score = scores(b, h, i);
      const std::int64_t g = h / (H / G);
      const T* of_out = dout.at(b, h, i);
      const double dot = product(of_out, out.at(b, h, i), V_);
      for (std::int64_t j = 0; j < std::ssize(score); ++j) {
        const double p =
            std::exp(score[static_cast<std::size_t>(j)] - static_cast<double>(statistic(b, h, i)));
        const double keep = kept(b, h, i, j);
        const double ds = p * (keep * product(of_out, value_of(b, h, j), V_) - dot) * scale_;
        for (std::int64_t c = 0; c < K_; ++c) {
          row(dq, H, b, h, i)[c] += ds * number(key_of(b, h, j)[c]);
          row(dk, G, b, g, j)[c] += ds * number(rows(kQ, views_.q).at(b, h, i)[c]);
        }
        for (std::int64_t c = 0; c < V_; ++c) {
          row(dv, G, b, g, j)[c] += keep * p * number(of_out[c]);
        }
      }
    });
    const auto store = [&](AttentionUid uid, const HeadRows& where, std::vector<double>& sums) {
      const auto to = rows(uid, where);
      for (std::int64_t b = 0; b < s_.sequences; ++b) {
        for (std::int64_t head = 0; head < where.heads; ++head) {
          for (std::int64_t i = 0; i < n_; ++i) {
            const double* from = row(sums, where.heads, b, head, i);
            for (std::int64_t c = 0; c < where.width; ++c) {
              to.at(b, head, i)[c] = device_common::narrow<T>(static_cast<float>(from[c]));
            }
            if (uid == kDv) poison(to.at(b, head, i));
          }
        }
      }
    };
    store(kDq, views_.dq, dq);
    store(kDk, views_.dk, dk);
    store(kDv, views_.dv, dv);
  }

  // Rows that lie between a tensor's own, in the same buffer, count as its.
  std::vector<fake_cuda::Access> operands(bool backward) const {
    std::vector<fake_cuda::Access> all;
    const auto add = [&](AttentionUid uid, const HeadRows& where, bool write) {
      const T* first = rows(uid, where).at(0, 0, 0);
      const T* last = rows(uid, where).at(s_.sequences - 1, where.heads - 1, n_ - 1) + where.width;
      all.push_back({first, static_cast<std::size_t>(last - first) * sizeof(T), write});
    };
    add(kQ, views_.q, false);
    add(kK, views_.k, false);
    add(kV, views_.v, false);
    if (backward) {
      add(kOut, views_.out, false);
      add(kDout, views_.dout, false);
      add(kDq, views_.dq, true);
      add(kDk, views_.dk, true);
      add(kDv, views_.dv, true);
    } else {
      add(kOut, views_.out_written, true);
    }
    const float* first = &statistic(0, 0, 0);
    const float* last = &statistic(s_.sequences - 1, s_.query_heads - 1, n_ - 1) + 1;
    all.push_back({first, static_cast<std::size_t>(last - first) * sizeof(float), !backward});
    if (dropout_.active()) {
      for (const AttentionUid uid : {kSeed, kOffset}) {
        all.push_back({pointers_.at(uid), sizeof(std::int64_t), false});
      }
    }
    return all;
  }

 private:
  // Columns that cuDNN leaves as they are: whoever reads them shows.
  void poison(T* row) const {
    std::fill(row + V_, row + K_, device_common::narrow<T>(std::nanf("")));
  }
  static double number(T x) { return static_cast<double>(device_common::widen(x)); }
  std::size_t elements(std::int64_t heads) const {
    return static_cast<std::size_t>(s_.sequences * heads * n_ * K_);
  }
  View<T> rows(AttentionUid uid, const HeadRows& where) const {
    return {pointers_.at(uid), where, K_};
  }
  const T* key_of(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return rows(kK, views_.k).at(b, h / (s_.query_heads / s_.kv_heads), j);
  }
  const T* value_of(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return rows(kV, views_.v).at(b, h / (s_.query_heads / s_.kv_heads), j);
  }
  double product(const T* a, const T* b, std::int64_t width) const {
    double sum = 0.0;
    for (std::int64_t c = 0; c < width; ++c) sum += number(a[c]) * number(b[c]);
    return sum;
  }
  std::vector<double> scores(std::int64_t b, std::int64_t h, std::int64_t i) const {
    std::vector<double> score(static_cast<std::size_t>(causal_ ? i + 1 : n_));
    const T* query = rows(kQ, views_.q).at(b, h, i);
    for (std::int64_t j = 0; j < std::ssize(score); ++j) {
      score[static_cast<std::size_t>(j)] = product(query, key_of(b, h, j), K_) * scale_;
    }
    return score;
  }
  float& statistic(std::int64_t b, std::int64_t h, std::int64_t i) const {
    auto* lse = static_cast<float*>(pointers_.at(kLse));
    return lse[b * views_.lse.sequence + h * views_.lse.rows + i * views_.lse.row];
  }
  double kept(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!dropout_.active()) return 1.0;
    const auto place = static_cast<std::uint64_t>(((b * s_.query_heads + h) * n_ + i) * n_ + j);
    const auto word = [&](AttentionUid uid) {
      return *static_cast<const std::uint64_t*>(pointers_.at(uid));
    };
    const RandomBlock block = random_block({word(kSeed) + word(kOffset), 0, 0}, place);
    return block.word[0] >= dropout_.threshold() ? static_cast<double>(dropout_.scale()) : 0.0;
  }
  template <class Visit>
  void for_each_query(const Visit& visit) const {
    for (std::int64_t b = 0; b < s_.sequences; ++b) {
      for (std::int64_t h = 0; h < s_.query_heads; ++h) {
        for (std::int64_t i = 0; i < n_; ++i) visit(b, h, i);
      }
    }
  }

  AttentionShape s_;
  bool causal_;
  std::int64_t n_, K_, V_;
  double scale_;
  Dropout dropout_;
  AttentionPointers pointers_;
  device_common::AttentionViews views_;
};

}  // namespace

fake_cuda::Operation attention_of(const AttentionGraphKey& key, const AttentionPointers& pointers,
                                  void* scratch) {
  for (const std::int64_t width : {key.views().q.width, key.views().v.width}) {
    SHERD_CHECK(width % 8 == 0, "cuDNN has no plan for columns of {}", width);
  }
  fake_cuda::Operation operation{.name = "attention", .run = {}};
  dispatch_float(key.dtype, [&]<class T>(T) {
    const Computation<T> computation(key, pointers);
    const auto bytes = static_cast<std::size_t>(key.scratch_bytes);
    operation.operands = computation.operands(key.backward);
    operation.operands.push_back({scratch, bytes, true});
    operation.run = [=, backward = key.backward] {
      std::memset(scratch, 0xff, bytes);  // cuDNN does as it likes with its scratch
      backward ? computation.backward() : computation.forward();
    };
  });
  return operation;
}

}  // namespace sherd::kernels::cuda
