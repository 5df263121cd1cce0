// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/kernels/pack_segments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

namespace tessera::runtime {

namespace {

using detail::array_tensor;
using detail::current_kernel_device;
using detail::kOperatorChunk;

template <typename T>
constexpr at::ScalarType kDtypeOf =
    std::is_same_v<T, double> ? at::kDouble : at::kFloat;

/// The elements of a run, or one number for all of them, as the rules of
/// update_rules.h take vectors.
template <typename T>
class OperatorNumber {
 public:
  OperatorNumber() = default;
  /// On the device: LibTorch multiplies by the inverse of a divisor that is a
  /// number of the host.
  OperatorNumber(T number)
      : tensor_(at::full(
            {},
            static_cast<double>(number),
            at::TensorOptions(current_kernel_device()).dtype(kDtypeOf<T>))) {}
  explicit OperatorNumber(at::Tensor tensor) : tensor_(std::move(tensor)) {}

  const at::Tensor& tensor() const {
    return tensor_;
  }

  friend OperatorNumber operator+(
      const OperatorNumber& a,
      const OperatorNumber& b) {
    return OperatorNumber(a.tensor_ + b.tensor_);
  }
  friend OperatorNumber operator-(
      const OperatorNumber& a,
      const OperatorNumber& b) {
    return OperatorNumber(a.tensor_ - b.tensor_);
  }
  friend OperatorNumber operator*(
      const OperatorNumber& a,
      const OperatorNumber& b) {
    return OperatorNumber(a.tensor_ * b.tensor_);
  }
  friend OperatorNumber operator/(
      const OperatorNumber& a,
      const OperatorNumber& b) {
    return OperatorNumber(a.tensor_ / b.tensor_);
  }
  friend OperatorNumber fma(
      const OperatorNumber& a,
      const OperatorNumber& b,
      const OperatorNumber& c) {
    const at::Tensor product = a.wide() * b.wide();
    return OperatorNumber((product + c.wide()).to(kDtypeOf<T>));
  }
  /// In float64: LibTorch's own in float32 is off by a unit on some processors.
  friend OperatorNumber sqrt(const OperatorNumber& a) {
    return OperatorNumber(at::sqrt(a.wide()).to(kDtypeOf<T>));
  }
  /// 1, -1, or the zero or NaN itself.
  friend OperatorNumber sign(const OperatorNumber& a) {
    return OperatorNumber(
        at::where(a.tensor_.abs() > 0, at::sign(a.tensor_), a.tensor_));
  }

 private:
  at::Tensor wide() const {
    return tensor_.to(at::kDouble);
  }

  at::Tensor tensor_;
};

/// Elements [begin, begin + count) of an array, in their storage format.
template <typename T>
at::Tensor stored(
    const void* array,
    LowPrecision format,
    int64_t begin,
    int64_t count) {
  const at::ScalarType dtype = format == LowPrecision::kNone ? kDtypeOf<T>
                               : format == LowPrecision::kBFloat16
                                   ? at::kBFloat16
                                   : at::kHalf;
  return array_tensor(
      static_cast<const char*>(array) +
          begin * static_cast<int64_t>(c10::elementSize(dtype)),
      count,
      dtype);
}

template <typename T>
OperatorNumber<T> load(
    const void* array,
    LowPrecision format,
    int64_t begin,
    int64_t count) {
  return OperatorNumber<T>(
      stored<T>(array, format, begin, count).to(kDtypeOf<T>));
}

constexpr int64_t kBits32 = 0xffffffff;

at::Tensor shifted(const at::Tensor& bits, int64_t right) {
  return at::bitwise_right_shift(bits, right);
}

/// stochastic_noise() of neighboring elements: [count] int64.
at::Tensor noise_of(
    uint32_t key0,
    uint32_t key1,
    uint32_t first,
    int64_t count) {
  // A product with 0x7feb352d fits into 63 bits, and so does one with the other
  // factor less 2^32, which has the same low 32 bits.
  constexpr int64_t kFirst = 0x7feb352d;
  constexpr int64_t kSecond = int64_t{0x846ca68b} - (int64_t{1} << 32);
  const auto begin = static_cast<int64_t>(first);
  at::Tensor x = at::arange(
      begin,
      begin + count,
      at::TensorOptions(current_kernel_device()).dtype(at::kLong));
  x = (x & kBits32) ^ static_cast<int64_t>(key0);
  x = ((x ^ shifted(x, 16)) * kFirst) & kBits32;
  x = ((x ^ shifted(x, 15)) + static_cast<int64_t>(key1)) & kBits32;
  return shifted((x * kSecond) & kBits32, 16);
}

/// bfloat16 as int16. @param values float32.
at::Tensor stochastic_bits(const at::Tensor& values, const at::Tensor& noise) {
  constexpr int64_t kNanBits16 = 0x7fc0;
  const at::Tensor bits = values.view(at::kInt).to(at::kLong) & kBits32;
  const at::Tensor rounded = shifted((bits + noise) & kBits32, 16)
                                 .masked_fill(at::isnan(values), kNanBits16);
  // With the sign of int16.
  return ((rounded ^ 0x8000) - 0x8000).to(at::kShort);
}

template <typename T, typename Shard>
void store(
    const Shard& s,
    void* array,
    LowPrecision format,
    int number,
    int64_t begin,
    const OperatorNumber<T>& values) {
  const at::Tensor& from = values.tensor();
  const at::Tensor into = stored<T>(array, format, begin, from.numel());
  if (format == LowPrecision::kNone) {
    into.copy_(from);
    return;
  }
  const at::Tensor narrow = from.to(at::kFloat);
  if (format != LowPrecision::kBFloat16 || !s.rounding.enabled) {
    into.copy_(narrow);
    return;
  }
  const at::Tensor noise = noise_of(
      s.rounding.key0,
      second_key(s.rounding, number),
      static_cast<uint32_t>(s.rounding.first + begin),
      from.numel());
  into.view(at::kShort).copy_(stochastic_bits(narrow, noise));
}

/// Calls body(begin, count) for the chunks of a run.
template <typename Body>
void for_chunks(int64_t numel, const Body& body) {
  for (int64_t begin = 0; begin < numel; begin += kOperatorChunk) {
    body(begin, std::min(kOperatorChunk, numel - begin));
  }
}

/// A number times one in memory of the device, which may be null for 1.
template <typename T>
OperatorNumber<T> scaled(double number, T narrow, const double* factor) {
  return factor == nullptr
             ? OperatorNumber<T>(narrow)
             : OperatorNumber<T>(
                   (array_tensor(factor, 1, at::kDouble).squeeze(0) * number)
                       .to(kDtypeOf<T>));
}

template <typename Shard>
auto grad_scale_of(const Shard& s) {
  using T = typename Shard::Master;
  return scaled<T>(
      static_cast<double>(s.rule.grad_scale), s.rule.grad_scale, s.grad_factor);
}

/// Updates a run with the states that it has.
template <int kStates, typename Shard>
void update_segment(const Shard& s) {
  using T = typename Shard::Master;
  using Number = OperatorNumber<T>;
  const Number grad_scale = grad_scale_of(s);
  for_chunks(s.numel, [&](int64_t begin, int64_t count) {
    Number master = load<T>(s.master, LowPrecision::kNone, begin, count);
    const Number grad =
        load<T>(s.grad, s.grad_format, begin, count) * grad_scale;
    Number state[std::max(kStates, 1)];
    if constexpr (kStates == 0) {
      s.rule.update(master, grad);
    } else {
      for (int k = 0; k < kStates; ++k) {
        state[k] = load<T>(s.states[k], s.state_format, begin, count);
      }
      s.rule.update(master, grad, state);
    }
    for (int k = 0; k < kStates; ++k) {
      store(s, s.states[k], s.state_format, 1 + k, begin, state[k]);
    }
    store(s, s.master, LowPrecision::kNone, 0, begin, master);
    if (s.low_precision_format != LowPrecision::kNone) {
      store(s, s.low_precision, s.low_precision_format, 0, begin, master);
    }
  });
}

template <typename Shard>
void update_one(const Shard& s) {
  using Rule = typename Shard::Rule;
  if constexpr (requires { Rule::kMayHaveNoState; }) {
    if (s.states[0] == nullptr) {
      update_segment<0>(s);
      return;
    }
  }
  update_segment<Rule::kStates>(s);
}

/// The second half of LAMB.
template <typename T>
void update_one(const LambShard<T>& s) {
  using Number = OperatorNumber<T>;
  const Number minus_lr =
      scaled<T>(-s.rule.lr, s.rule.minus_lr, s.rule.lr_factor);
  for_chunks(s.numel, [&](int64_t begin, int64_t count) {
    const auto master = load<T>(s.master, LowPrecision::kNone, begin, count);
    const Number direction = s.rule.direction(
        master,
        load<T>(s.states[0], s.state_format, begin, count),
        load<T>(s.states[1], s.state_format, begin, count));
    const Number updated = fma(direction, minus_lr, master);
    store(s, s.master, LowPrecision::kNone, 0, begin, updated);
    if (s.low_precision_format != LowPrecision::kNone) {
      store(s, s.low_precision, s.low_precision_format, 0, begin, updated);
    }
  });
}

void update(const UpdateShards& shards) {
  const detail::PlainOperators plain;
  std::visit(
      [](const auto& segments) {
        for (const auto& segment : segments) {
          update_one(segment);
        }
      },
      shards);
}

/// The first half of LAMB. @param sums [2] float64.
template <typename T>
void moments_of(const LambShard<T>& s, const at::Tensor& sums) {
  using Number = OperatorNumber<T>;
  const Number grad_scale = grad_scale_of(s);
  for_chunks(s.numel, [&](int64_t begin, int64_t count) {
    const auto state = [&](int k) {
      return load<T>(s.states[k], s.state_format, begin, count);
    };
    const auto master = load<T>(s.master, LowPrecision::kNone, begin, count);
    Number exp_avg = state(0);
    Number exp_avg_sq = state(1);
    s.rule.update_moments(
        load<T>(s.grad, s.grad_format, begin, count) * grad_scale,
        exp_avg,
        exp_avg_sq);
    store(s, s.states[0], s.state_format, 1, begin, exp_avg);
    store(s, s.states[1], s.state_format, 2, begin, exp_avg_sq);
    // Uses the stored moments, because the second half reads those.
    const Number direction = s.rule.direction(master, state(0), state(1));
    sums[0].add_((master * master).tensor().sum(at::kDouble));
    sums[1].add_((direction * direction).tensor().sum(at::kDouble));
  });
}

void lamb_moments(const LambShards& shards, double* sums) {
  const detail::PlainOperators plain;
  std::visit(
      [&](const auto& segments) {
        for (const auto& segment : segments) {
          moments_of(segment, array_tensor(sums, 2, at::kDouble));
          sums += 2 * kLambCudaBlocks;
        }
      },
      shards);
}

void pack(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode) {
  const detail::PlainOperators plain;
  for (const PackShard& shard : shards) {
    const at::Tensor target =
        array_tensor(shard.target, shard.numel, detail::dtype_of(target_type));
    const at::Tensor source = shard.source == nullptr
                                  ? at::Tensor()
                                  : array_tensor(
                                        shard.source,
                                        shard.numel,
                                        detail::dtype_of(shard.source_type));
    detail::pack_by_operators({target, source}, factor, mode);
  }
}

/// By the operator that use_fast_operators() does not replace, as are those of
/// the next functions.
void add_bias(const BiasRows& rows) {
  const detail::PlainOperators plain;
  const at::ScalarType dtype = detail::dtype_of(rows.type);
  at::Tensor x = array_tensor(rows.x, rows.rows * rows.features, dtype)
                     .view({rows.rows, rows.features});
  at::add_out(x, x, array_tensor(rows.bias, rows.features, dtype));
}

void column_sums(const ColumnSums& sums) {
  const detail::PlainOperators plain;
  const at::ScalarType dtype = detail::dtype_of(sums.type);
  const at::Tensor x = array_tensor(sums.x, sums.rows * sums.features, dtype)
                           .view({sums.rows, sums.features});
  at::Tensor wide = at::empty({sums.features}, x.options().dtype(at::kFloat));
  at::sum_out(wide, x, {0}, /*keepdim=*/false, at::kFloat);
  array_tensor(sums.sums, sums.features, dtype).copy_(wide);
}

void copy_rows(const RowCopy& rows) {
  const detail::PlainOperators plain;
  const auto matrices = [&](const void* data,
                            int64_t batch_stride,
                            int64_t stride) {
    return array_tensor(
               data,
               (rows.batches - 1) * batch_stride + (rows.rows - 1) * stride +
                   rows.columns,
               at::kShort)
        .as_strided(
            {rows.batches, rows.rows, rows.columns}, {batch_stride, stride, 1});
  };
  matrices(rows.to, rows.to_batch_stride, rows.to_stride)
      .copy_(matrices(rows.from, rows.from_batch_stride, rows.from_stride));
}

} // namespace

const DeviceKernels& operator_kernels() {
  static constexpr DeviceKernels kKernels{
      .update = &update,
      .lamb_moments = &lamb_moments,
      .pack = &pack,
      .blocks = &detail::blocks_by_operators,
      .norm = &detail::norm_by_operators,
      .norm_backward = &detail::norm_backward_by_operators,
      .add_bias = &add_bias,
      .column_sums = &column_sums,
      .copy_rows = &copy_rows};
  return kKernels;
}

} // namespace tessera::runtime
