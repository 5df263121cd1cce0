// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointBlock` wraps a module whose intermediate activations are not kept
// for backward but recomputed.

#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/groups/module_options.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

struct CheckpointOptions {
  /// If false, forward() is an ordinary forward; the block is still a group.
  bool use_checkpoint = true;
  /// The arguments rest on the host until backward, except those of the last
  /// such block, which backward needs first. Takes effect in an engine: of a
  /// module with such a block, or with other PlacementOptions::activations than
  /// kDevice.
  bool inputs_on_host = false;
  /// A group whose ranks all have the same arguments, such as a tensor-parallel
  /// group without sequence parallelism: each rank keeps 1/n of every argument
  /// that requires a gradient, and they are all-gathered when the block is
  /// recomputed (ZeRO-R, arXiv:1910.02054, 6.1). Must outlive the block's
  /// graphs.
  Communicator* divide_inputs_over = nullptr;
};

/// What all checkpointed blocks have. These may be changed at any time.
struct CheckpointedModule : ConfiguredModule {
  bool use_checkpoint = true;
  bool inputs_on_host = false;
  Communicator* divide_inputs_over = nullptr;
};

/// A `Contained` that recomputes its forward in backward; see
/// [Note: recomputation]. It derives from Contained and has the same parameters
/// under the same names, so that checkpoints of the model do not depend on it.
/// In an engine it is a group of its own; it also works without an engine.
///
/// forward() takes the arguments of Contained::forward, none of them defaulted:
/// tensors (defined or not, requiring gradients or not) and the other types
/// that visit_tensors() supports.
template <typename Contained>
class CheckpointBlockImpl : public Contained, public CheckpointedModule {
 public:
  /// Shares the parameters and submodules of `module`, which should not be used
  /// afterwards.
  explicit CheckpointBlockImpl(
      const torch::nn::ModuleHolder<Contained>& module,
      const CheckpointOptions& options = {})
      : Contained(*module) {
    use_checkpoint = options.use_checkpoint;
    inputs_on_host = options.inputs_on_host;
    divide_inputs_over = options.divide_inputs_over;
  }

  template <typename... Arguments>
  auto forward(const Arguments&... arguments) {
    if (!use_checkpoint || !at::GradMode::is_enabled()) {
      return plain_forward(arguments...);
    }
    // The lambda owns the module, because the graph may outlive it.
    auto self =
        std::static_pointer_cast<CheckpointBlockImpl>(this->shared_from_this());
    return checkpoint(
        {.trains = trains(),
         .inputs_on_host = inputs_on_host,
         .divide_over = divide_inputs_over,
         .devices = devices(),
         .buffers = updated_buffers()},
        [self](const auto&... copies) {
          return self->plain_forward(copies...);
        },
        arguments...);
  }

  /// Calls Contained::forward without recomputation.
  template <typename... Arguments>
  auto plain_forward(const Arguments&... arguments) {
    return Contained::forward(arguments...);
  }

  /// Whether a parameter of the block requires a gradient.
  bool trains() const {
    const auto parameters = this->parameters();
    return std::any_of(
        parameters.begin(), parameters.end(), [](const auto& parameter) {
          return parameter.requires_grad();
        });
  }

  /// What a forward may update, such as running statistics.
  std::vector<at::Tensor> updated_buffers() const {
    return this->is_training() ? this->buffers() : std::vector<at::Tensor>();
  }

  /// The devices of its parameters.
  std::vector<c10::Device> devices() const {
    std::vector<c10::Device> found;
    for (const at::Tensor& parameter : this->parameters()) {
      const c10::Device device = parameter.device();
      if (std::find(found.begin(), found.end(), device) == found.end()) {
        found.push_back(device);
      }
    }
    return found;
  }
};

/// Module holder:
/// `CheckpointBlock<Layer> block(Layer(options), {.inputs_on_host = true});`
template <typename Holder>
class CheckpointBlock
    : public torch::nn::ModuleHolder<
          CheckpointBlockImpl<typename Holder::ContainedType>> {
 public:
  using Impl = CheckpointBlockImpl<typename Holder::ContainedType>;

  explicit CheckpointBlock(
      const Holder& module,
      const CheckpointOptions& options = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(module, options)) {
  }
  /* implicit */ CheckpointBlock(std::shared_ptr<Impl> module)
      : torch::nn::ModuleHolder<Impl>(std::move(module)) {}
  /* implicit */ CheckpointBlock(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}

  // ModuleHolder::operator() does not see a forward that is a template.
  template <typename... Arguments>
  auto operator()(const Arguments&... arguments) {
    return this->get()->forward(arguments...);
  }
};

} // namespace tessera
