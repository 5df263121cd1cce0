// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/checkpointing/checkpoint.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/sharding/checkpointing/divided_tensor.h"
#include "tessera/sharding/checkpointing/execution_state.h"
#include "tessera/sharding/inspection/tensor_recorder.h"
#include "tessera/sharding/interception/recompute_scope.h"
#include "tessera/sharding/tensor_parallel/dtensor_impl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What backward needs apart from the inputs.
struct CheckpointedCall : torch::CustomClassHolder {
  const variable_list* inputs = nullptr; ///< during forward only
  const TensorFunction* first = nullptr; ///< during forward only
  const std::vector<c10::Device>* devices = nullptr; ///< during forward only
  TensorFunction again;
  std::vector<size_t> differentiable; ///< inputs that require a gradient
  Communicator* group = nullptr; ///< over which some of them are divided
  /// Those of them that are equal on all ranks of `group`.
  std::vector<size_t> divisible;
  std::vector<sharding::DividedTensor> divided; ///< how to gather these again
  sharding::RandomState random;
  sharding::AutocastState autocast;
  std::vector<at::Tensor> buffers;
  RecordReplay::Position records; ///< where its records begin
};

constexpr const char* kCall = "call";

std::vector<uint32_t> versions_of(const variable_list& tensors) {
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(
        tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version()));
  }
  return versions;
}

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  /// `differentiable` and `anchor` only create edges of the graph: autograd
  /// accepts no undefined tensors, and without an edge no output would require
  /// a gradient.
  static variable_list forward(
      AutogradContext* context,
      const c10::intrusive_ptr<CheckpointedCall>& call,
      at::TensorList /*differentiable*/,
      const at::Tensor& /*anchor*/) {
    const variable_list& inputs = *call->inputs;
    call->random = sharding::RandomState::take(inputs, *call->devices);
    call->autocast = sharding::AutocastState::take();
    call->records = RecordReplay::now();
    const auto versions = versions_of(inputs);
    variable_list outputs;
    {
      const sharding::CheckpointedForward scope;
      const runtime::SaveToHostScope inside(false); // only for the arguments
      const sharding::NoAutocastCache no_cache;
      outputs = (*call->first)(inputs);
    }
    for (at::Tensor& output : outputs) {
      // An output becomes part of the graph. A tensor that is also referenced
      // elsewhere, such as an input that is passed through or a buffer, must
      // not.
      if (output.use_count() > 1) {
        output = output.detach();
      }
    }
    TESSERA_CHECK(
        versions_of(inputs) == versions,
        "checkpoint: the forward changed one of its inputs in place, so it cannot be recomputed. Use the operator that returns a new tensor, or set use_checkpoint = false.");
    context->saved_data[kCall] = c10::IValue::make_capsule(call);
    variable_list kept = inputs;
    if (call->group != nullptr) {
      for (const size_t i : call->divisible) {
        call->divided.emplace_back(inputs[i], *call->group);
        kept[i] = call->divided.back().take_part();
      }
    }
    context->save_for_backward(std::move(kept));
    context->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& output_gradients) {
    check_backward();
    const auto call = c10::static_intrusive_pointer_cast<CheckpointedCall>(
        context->saved_data[kCall].toCapsule());
    variable_list inputs = context->get_saved_variables();
    for (size_t i = 0; i < call->divided.size(); ++i) {
      at::Tensor& input = inputs[call->divisible[i]];
      input = call->divided[i].gather(input);
    }
    for (at::Tensor& input : inputs) {
      input = input.detach();
    }
    for (const size_t i : call->differentiable) {
      inputs[i].requires_grad_();
    }
    sharding::RecomputeScope scope;
    run_backward(recompute(*call, inputs), output_gradients);
    scope.finish();

    variable_list gradients{at::Tensor()}; // of `call` itself
    for (const size_t i : call->differentiable) {
      gradients.push_back(inputs[i].grad());
    }
    gradients.emplace_back(); // of `anchor`
    return gradients;
  }

 private:
  static void check_backward() {
    TESSERA_CHECK(
        !at::GradMode::is_enabled(),
        "checkpoint: backward with create_graph reached a checkpointed block, whose recomputation is not part of a graph. Set use_checkpoint = false for it.");
    TESSERA_CHECK(
        torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
        "checkpoint: torch::autograd::grad(), or backward with inputs, reached a checkpointed block, which accumulates into its parameters. Use loss.backward(), or set use_checkpoint = false.");
  }

  static variable_list recompute(
      const CheckpointedCall& call,
      const variable_list& inputs) {
    const sharding::ExecutionStateScope state(call.random, call.autocast);
    const sharding::BufferScope buffers(call.buffers);
    const RecordReplay records(call.records);
    const at::AutoGradMode with_gradients(true);
    return call.again(inputs);
  }

  static void run_backward(
      const variable_list& outputs,
      const variable_list& output_gradients) {
    TESSERA_CHECK(
        outputs.size() == output_gradients.size(),
        "checkpoint: the forward returned {} tensors, but {} when it was recomputed. It must not depend on anything but its arguments and parameters.",
        output_gradients.size(),
        outputs.size());
    variable_list roots;
    variable_list gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && output_gradients[i].defined()) {
        roots.push_back(outputs[i]);
        gradients.push_back(output_gradients[i]);
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, gradients);
    }
  }
};

} // namespace

namespace {

using Layouts = std::vector<sharding::Layout>;

/// @param layouts of the tensors whose parts the inputs are.
std::vector<at::Tensor> checkpoint_parts(
    const std::vector<at::Tensor>& inputs,
    const Layouts& layouts,
    const TensorFunction& first,
    TensorFunction again,
    const CheckpointMode& mode) {
  auto call = c10::make_intrusive<CheckpointedCall>();
  variable_list differentiable;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].requires_grad()) {
      call->differentiable.push_back(i);
      if (!layouts[i].divided) {
        call->divisible.push_back(i);
      }
      differentiable.push_back(inputs[i]);
    }
  }
  if (!at::GradMode::is_enabled() || (differentiable.empty() && !mode.trains)) {
    return first(inputs);
  }
  call->inputs = &inputs;
  call->first = &first;
  call->devices = &mode.devices;
  call->again = std::move(again);
  call->group = mode.divide_over;
  call->buffers = mode.buffers;
  const runtime::SaveToHostScope to_host(mode.inputs_on_host);
  const at::Tensor anchor = at::empty({0}).set_requires_grad(mode.trains);
  auto outputs =
      CheckpointFunction::apply(call, at::TensorList(differentiable), anchor);
  call->inputs = nullptr;
  call->first = nullptr;
  call->devices = nullptr;
  return outputs;
}

/// Replaces DTensors by their parts.
Layouts take_layouts(std::vector<at::Tensor>& tensors) {
  Layouts layouts;
  for (at::Tensor& tensor : tensors) {
    layouts.emplace_back(tensor);
    tensor = local_tensor(tensor);
  }
  return layouts;
}

void give_layouts(std::vector<at::Tensor>& tensors, const Layouts& layouts) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i] = with_layout(tensors[i], layouts.at(i));
  }
}

/// The function of parts that a function of DTensors is.
TensorFunction of_parts(
    TensorFunction function,
    const Layouts& inputs,
    std::shared_ptr<Layouts> outputs) {
  return [=, function = std::move(function)](
             const std::vector<at::Tensor>& parts) {
    std::vector<at::Tensor> tensors = parts;
    give_layouts(tensors, inputs);
    tensors = function(tensors);
    *outputs = take_layouts(tensors);
    return tensors;
  };
}

} // namespace

std::vector<at::Tensor> checkpoint_tensors(
    const std::vector<at::Tensor>& inputs,
    const TensorFunction& first,
    TensorFunction again,
    const CheckpointMode& mode) {
  // Autograd keeps and differentiates parts, not their wrappers.
  std::vector<at::Tensor> parts = inputs;
  const Layouts layouts = take_layouts(parts);
  const auto made = std::make_shared<Layouts>();
  std::vector<at::Tensor> outputs = checkpoint_parts(
      parts,
      layouts,
      of_parts(first, layouts, made),
      of_parts(std::move(again), layouts, made),
      mode);
  give_layouts(outputs, *made);
  return outputs;
}

} // namespace tessera
