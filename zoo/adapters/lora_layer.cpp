// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora_layer.h"

#include "tessera/sharding/parallel/parallel_dropout.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/types.h>

#include <cmath>

namespace tessera::zoo {

namespace {

constexpr const char* kA = "lora_A";
constexpr const char* kB = "lora_B";

InitMethod init_of_a(const LoraLayerOptions& options, int64_t in) {
  if (options.init == LoraInit::kGaussian) {
    return normal_init(0, 1 / static_cast<double>(options.r));
  }
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  return uniform_init(-bound, bound);
}

InitMethod init_of_b(const LoraLayerOptions& options) {
  if (options.init != LoraInit::kRandom) {
    return zeros_init();
  }
  const double bound = 1 / std::sqrt(static_cast<double>(options.r));
  return uniform_init(-bound, bound);
}

DistributedParameterOptions like(const at::Tensor& weight) {
  return {weight.scalar_type(), weight.device(), /*requires_grad=*/true};
}

class PlainLora : public DistributedModule, public LoraLayer {
 public:
  PlainLora(
      const LinearLayer& layer,
      const LoraLayerOptions& options,
      const at::Tensor& shared_a)
      : LoraLayer(layer, options), a_owned_(!shared_a.defined()) {
    const auto [in, out] = std::pair(layer.options.in, layer.options.out);
    const auto how = like(layer.weight());
    a_ = a_owned_ ? register_parameter(
                        kA,
                        DistributedParameter(
                            {options.r, in}, init_of_a(options, in), how))
                        .tensor()
                  : shared_a;
    b_ =
        register_parameter(
            kB, DistributedParameter({out, options.r}, init_of_b(options), how))
            .tensor();
  }

  const torch::nn::Module& parameters() const override {
    return *this;
  }

 private:
  bool trains() const override {
    return is_training();
  }

  bool a_owned_;
};

class DividedLora : public ParallelModule, public LoraLayer {
 public:
  DividedLora(
      const LinearLayer& layer,
      const LoraLayerOptions& options,
      const at::Tensor& shared_a)
      : ParallelModule(*layer.context.parallel()), LoraLayer(layer, options) {
    const auto how = like(layer.weight());
    const LinearOptions& linear = layer.options;
    const std::vector<int64_t> a_sizes{options.r, linear.in};
    const std::vector<int64_t> b_sizes{linear.out, options.r};
    const InitMethod a_init = init_of_a(options, linear.in);
    const InitMethod b_init = init_of_b(options);
    if (shared_a.defined()) {
      a_ = shared_a;
    } else if (layer.division == LinearDivision::kRow) {
      a_ = register_part(kA, a_sizes, {1, linear.unit}, a_init, how);
    } else {
      a_ = register_whole(kA, a_sizes, a_init, how);
    }
    b_ = layer.division == LinearDivision::kColumn
             ? register_part(kB, b_sizes, {0, linear.unit}, b_init, how)
             : register_whole(kB, b_sizes, b_init, how);
  }

  const torch::nn::Module& parameters() const override {
    return *this;
  }

 private:
  bool trains() const override {
    return is_training();
  }
};

} // namespace

LoraLayer::LoraLayer(const LinearLayer& layer, const LoraLayerOptions& options)
    : division_(layer.division),
      context_(layer.context),
      linear_(layer.options),
      options_(options) {}

std::shared_ptr<LoraLayer> LoraLayer::add(
    LinearLayer& layer,
    const LoraLayerOptions& options,
    const LoraLayer* first) {
  const at::Tensor shared_a = first != nullptr ? first->a_ : at::Tensor();
  const auto add_one = [&](const auto& made) {
    made->train(layer.module().is_training());
    layer.module().register_module(kAdapterModule, made);
    layer.adapter = made;
    return made;
  };
  if (layer.context.parallel() != nullptr) {
    return add_one(std::make_shared<DividedLora>(layer, options, shared_a));
  }
  return add_one(std::make_shared<PlainLora>(layer, options, shared_a));
}

void LoraLayer::remove(LinearLayer& layer) {
  layer.module().unregister_module(kAdapterModule);
  layer.adapter.reset();
}

LoraLayer* LoraLayer::of(const LinearLayer& layer) {
  return dynamic_cast<LoraLayer*>(layer.adapter.get());
}

at::Tensor LoraLayer::dropped(const at::Tensor& x) const {
  if (!trains() || options_.dropout == 0) {
    return x;
  }
  if (division_ == LinearDivision::kRow) {
    return context_.dropout_part(
        x, options_.dropout, -1, linear_.in, linear_.unit);
  }
  if (division_ == LinearDivision::kData || context_.parallel() == nullptr) {
    return context_.dropout(x, options_.dropout, true);
  }
  // After enter(): whole on every rank, under sequence parallelism too.
  TensorParallel whole = *context_.parallel();
  whole.sequence = false;
  const PartsRandomScope tokens(context_, x.device(), /*tensor_parts=*/false);
  return dropout_between(x, options_.dropout, whole);
}

at::Tensor LoraLayer::forward(const at::Tensor& x) {
  at::Tensor inner;
  at::Tensor up;
  const at::Tensor input = dropped(x);
  if (context_.parallel() == nullptr) {
    inner = at::linear(input, a_);
    up = b_;
  } else if (division_ == LinearDivision::kColumn) {
    inner = at::linear(input, context_.shared(a_));
    up = b_;
  } else if (division_ == LinearDivision::kRow) {
    // The all-reduce is over r features, not the layer's.
    inner = leave_layer(at::linear(input, a_), *context_.parallel());
    up = context_.replicated(b_);
  } else {
    inner = at::linear(input, context_.replicated(a_));
    up = context_.replicated(b_);
  }
  return at::linear(inner * options_.scaling, up);
}

at::Tensor LoraLayer::product() const {
  return at::matmul(b_.to(at::kFloat), a_.to(at::kFloat)) * options_.scaling;
}

} // namespace tessera::zoo
