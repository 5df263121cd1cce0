// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora_layer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"
#include "tessera/zoo/adapters/principal_part.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr const char* kA = "lora_A";
constexpr const char* kB = "lora_B";
constexpr const char* kMagnitude = "lora_magnitude";
/// Elements of a weight that are read at once.
constexpr int64_t kReadNumel = 1 << 24;

/// @param value of the whole parameter.
InitMethod given_init(const at::Tensor& value) {
  return [flat = value.flatten()](
             const at::Tensor& slice, const InitPosition& position) {
    slice.copy_(flat.narrow(0, position.first_element, slice.numel()));
  };
}

InitMethod init_of_a(const LoraLayerOptions& options, int64_t in) {
  if (options.initial_a.defined()) {
    return given_init(options.initial_a);
  }
  if (options.init == LoraInit::kGaussian) {
    return normal_init(0, 1 / static_cast<double>(options.r));
  }
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  return uniform_init(-bound, bound);
}

InitMethod init_of_b(const LoraLayerOptions& options) {
  if (options.initial_b.defined()) {
    return given_init(options.initial_b);
  }
  if (options.init != LoraInit::kRandom) {
    return zeros_init();
  }
  const double bound = 1 / std::sqrt(static_cast<double>(options.r));
  return uniform_init(-bound, bound);
}

/// The rows of a weight, as it is or as it will be when it gets memory.
class WeightRows {
 public:
  explicit WeightRows(const at::Tensor& weight)
      : row_numel_(weight.size(1)),
        options_(weight.options().requires_grad(false)) {
    if (!sharding::is_deferred(weight)) {
      value_ = weight.detach();
      return;
    }
    TESSERA_CHECK(
        weight.is_contiguous(),
        "model.lora.use_dora: a weight of sizes {} without memory is not contiguous; call materialize(model) first",
        weight.sizes());
    begin_ = weight.storage_offset();
    fill_ =
        sharding::deferred_init(*weight.storage().unsafeGetStorageImpl())->fill;
  }

  /// Writes the sums of the squares of some rows, [n] in any dtype.
  void squares(const at::Tensor& result, int64_t first) const {
    const at::NoGradGuard no_grad;
    const sharding::DTensorGuard parts;
    const int64_t step = std::max<int64_t>(1, kReadNumel / row_numel_);
    for (int64_t i = 0; i < result.numel(); i += step) {
      const int64_t rows = std::min(step, result.numel() - i);
      const at::Tensor some = read(first + i, rows);
      if (runtime::has_dry_values(some.const_data_ptr())) {
        result.narrow(0, i, rows)
            .copy_(
                at::linalg_vector_norm(some, 2, 1, false, at::kFloat).square());
      }
    }
  }

 private:
  at::Tensor read(int64_t first, int64_t rows) const {
    if (value_.defined()) {
      return value_.narrow(0, first, rows);
    }
    const at::Tensor some = at::empty({rows * row_numel_}, options_);
    fill_(some, begin_ + first * row_numel_);
    return some.view({rows, row_numel_});
  }

  int64_t row_numel_;
  at::TensorOptions options_;
  at::Tensor value_;
  int64_t begin_ = 0;
  std::function<void(const at::Tensor&, int64_t)> fill_;
};

/// The lengths of the rows of a weight.
/// @param divided how tensor-parallel ranks divide it; null: not at all.
InitMethod row_lengths_of(
    const at::Tensor& weight,
    const sharding::DividedParameter* divided) {
  const WeightRows rows(weight);
  if (divided != nullptr && divided->division == TensorDivision::kRow) {
    const at::Tensor sums =
        at::empty({weight.size(0)}, weight.options().dtype(at::kFloat));
    rows.squares(sums, 0);
    divided->tp->group->all_reduce_sum(sums, "lora_magnitude").wait();
    return [lengths = sums.sqrt_()](
               const at::Tensor& slice, const InitPosition& position) {
      slice.copy_(lengths.narrow(0, position.first_element, slice.numel()));
    };
  }
  int64_t begin = 0;
  if (divided != nullptr) {
    for (const DimRange& range : divided->spec.part().ranges) {
      begin = range.dim == 0 ? range.begin : begin;
    }
  }
  return [rows, begin](const at::Tensor& slice, const InitPosition& position) {
    const at::Tensor sums =
        at::empty({slice.numel()}, slice.options().dtype(at::kFloat));
    rows.squares(sums, position.first_element - begin);
    slice.copy_(sums.sqrt_());
  };
}

/// Lengths that can be divided by: those of rows of zeros are not 0.
at::Tensor nonzero_lengths(const at::Tensor& squares) {
  return squares.clamp_min(std::numeric_limits<float>::min()).sqrt();
}

} // namespace

at::Tensor merged_weight(
    const at::Tensor& weight,
    const at::Tensor& update,
    const at::Tensor& magnitude,
    const std::function<void(const at::Tensor& squares)>& sum_over_ranks) {
  const at::Tensor sum = weight.to(at::kFloat) + update;
  if (!magnitude.defined()) {
    return sum;
  }
  const at::Tensor squares = sum.square().sum(1);
  if (sum_over_ranks) {
    sum_over_ranks(squares);
  }
  const at::Tensor lengths = nonzero_lengths(squares);
  return sum * (magnitude.to(at::kFloat) / lengths).unsqueeze(1);
}

LoraLayer::LoraLayer(
    const LinearLayer& layer,
    const LoraLayerOptions& options,
    const LoraLayer* first)
    : context_(layer.context),
      options_(options),
      weight_(layer.weight),
      bias_(layer.bias) {
  const auto [in, out] = std::pair(layer.sizes.in, layer.sizes.out);
  const auto like = DistributedParameterOptions{
      layer.weight.scalar_type(), layer.weight.device()};
  const auto* divided = sharding::divided_parameter(layer.weight);
  const auto divide =
      [&](const at::Tensor& weight, const char* name, TensorDivision division) {
        if (divided != nullptr && divided->division == division) {
          divide_weight(
              weight, name, division, divided->split().unit(), *divided->tp);
        }
      };
  if (first != nullptr) {
    a_ = first->a_;
  } else {
    a_ = register_parameter(
        kA,
        DistributedParameter({options.r, in}, init_of_a(options, in), like));
    divide(a_, kA, TensorDivision::kRow);
  }
  b_ = register_parameter(
      kB, DistributedParameter({out, options.r}, init_of_b(options), like));
  divide(b_, kB, TensorDivision::kColumn);
  if (options.use_dora) {
    magnitude_ = register_parameter(
        kMagnitude,
        DistributedParameter({out}, row_lengths_of(weight_, divided), like));
    divide(magnitude_, kMagnitude, TensorDivision::kColumn);
  }
}

std::shared_ptr<LoraLayer> LoraLayer::add(
    LinearLayer& layer,
    const LoraLayerOptions& options,
    const LoraLayer* first) {
  const auto made = std::make_shared<LoraLayer>(layer, options, first);
  made->train(layer.is_training());
  layer.register_module(kAdapterModule, made);
  layer.adapter = made;
  made->change_weight(-1);
  return made;
}

void LoraLayer::change_weight(double factor) const {
  if (options_.initial_b.defined()) {
    add_product(
        weight_,
        options_.initial_a,
        options_.initial_b,
        factor * options_.scaling);
  }
}

void LoraLayer::remove(LinearLayer& layer, bool restores) {
  if (const LoraLayer* adapter = of(layer); adapter != nullptr && restores) {
    adapter->change_weight(1);
  }
  layer.unregister_module(kAdapterModule);
  layer.adapter.reset();
}

LoraLayer* LoraLayer::of(const LinearLayer& layer) {
  return dynamic_cast<LoraLayer*>(layer.adapter.get());
}

at::Tensor LoraLayer::forward(const at::Tensor& x, const at::Tensor& product) {
  const bool drops = is_training() && options_.dropout > 0;
  const at::Tensor input =
      drops ? context_.dropout(x, options_.dropout, true) : x;
  const at::Tensor low_rank =
      at::linear(at::linear(input, a_) * options_.scaling, b_);
  if (!magnitude_.defined()) {
    return product + low_rank;
  }
  // y = W x + B A x' + (m / |V| - 1) (W + B A) x' + b, where x' has dropped
  // elements, as in PEFT. Of the sums, autograd keeps one.
  const at::Tensor sum = product + low_rank;
  at::Tensor changed = sum;
  if (drops) {
    changed = at::linear(input, weight_) + low_rank;
  } else if (bias_.defined()) {
    changed = sum - bias_;
  }
  return sum + changed * row_changes();
}

at::Tensor LoraLayer::squares() const {
  const at::NoGradGuard no_grad;
  const sharding::DTensorGuard parts;
  const at::Tensor a = a_.to(at::kFloat);
  const at::Tensor b = b_.to(at::kFloat);
  const at::Tensor crossed = at::matmul(weight_, a_.t()).to(at::kFloat);
  const at::Tensor gram = at::matmul(a, a.t()) * options_.scaling;
  at::Tensor sums =
      at::linalg_vector_norm(weight_, 2, 1, false, at::kFloat).square() +
      (b * (crossed * 2 + at::matmul(b, gram))).sum(1) * options_.scaling;
  sum_over_ranks(sums);
  return sums;
}

void LoraLayer::sum_over_ranks(const at::Tensor& squares) const {
  const auto* divided = sharding::divided_parameter(weight_);
  if (divided != nullptr && divided->division == TensorDivision::kRow) {
    divided->tp->group->all_reduce_sum(squares, "lengths of rows").wait();
  }
}

at::Tensor LoraLayer::row_changes() const {
  const at::Tensor lengths = nonzero_lengths(squares());
  const auto* divided = sharding::divided_parameter(magnitude_);
  at::Tensor changes;
  {
    const sharding::DTensorGuard parts;
    // In float32: near 1, bfloat16 has steps of 0.8 %.
    changes =
        (magnitude_.to(at::kFloat) / lengths - 1).to(weight_.scalar_type());
  }
  return divided == nullptr || divided->tp->group->size() == 1
             ? changes
             : sharding::make_dtensor(
                   changes,
                   sharding::DividedDim{0, divided->split()},
                   divided->tp);
}

at::Tensor LoraLayer::merged() const {
  const sharding::DTensorGuard parts;
  const at::Tensor update =
      at::matmul(b_.to(at::kFloat), a_.to(at::kFloat)) * options_.scaling;
  return merged_weight(
      weight_, update, magnitude_, [this](const at::Tensor& squares) {
        sum_over_ranks(squares);
      });
}

} // namespace tessera::zoo
