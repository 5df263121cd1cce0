// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/parallel/pipelined_batches.h"

#include "tessera/pipeline/make_schedule.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/recompute_scope.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace tessera::engine {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kCall = "call";

/// The gradient of a leaf; zeros if it did not take part.
at::Tensor gradient_of(const at::Tensor& leaf) {
  return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
}

} // namespace

/// The state that backward needs.
struct PipelinedCall : torch::CustomClassHolder {
  PipelinedBatches* pipeline = nullptr;
  PipelinedBatches::Arguments arguments;
  const PipelinedBatches::Stage* stage = nullptr; ///< during forward only
};

struct PipelinedFunction : torch::autograd::Function<PipelinedFunction> {
  /// `local` and `anchor` exist for the graph's edges: the parameters of the
  /// pipeline stages have none.
  static at::Tensor forward(
      AutogradContext* context,
      const c10::intrusive_ptr<PipelinedCall>& call,
      at::TensorList /*own*/,
      const at::Tensor& /*anchor*/) {
    context->saved_data[kCall] = c10::IValue::make_capsule(call);
    const at::AutoGradMode with_gradients(true);
    return call->pipeline->forward(call->arguments, *call->stage);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto call = c10::static_intrusive_pointer_cast<PipelinedCall>(
        context->saved_data[kCall].toCapsule());
    sharding::RecomputeScope scope;
    variable_list results =
        call->pipeline->backward(call->arguments, gradients[0]);
    scope.finish();
    results.insert(results.begin(), at::Tensor()); // of the call itself
    results.emplace_back(); // of the anchor
    return results;
  }
};

PipelinedBatches::PipelinedBatches(World& world, const ParallelMesh& mesh)
    : ranks_(
          world,
          "pipelined batches",
          mesh.ranks(ParallelGroup::kPipeline, world.rank()),
          world.device()),
      host_group_(world.new_communicator(
          "pipelined batches",
          at::kCPU,
          mesh.ranks(ParallelGroup::kPipeline, world.rank()))),
      device_group_(
          world.device().is_cpu()
              ? nullptr
              : world.new_communicator(
                    "pipelined batches",
                    world.device(),
                    mesh.ranks(ParallelGroup::kPipeline, world.rank()))),
      executor_(
          make_schedule(
              PipelineScheduleKind::kGPipe,
              {ranks_.size(), ranks_.size(), 1}),
          ranks_.size() > 1 ? &ranks_ : nullptr,
          PipelineOptions{.shapes_vary = true}) {}

void PipelinedBatches::check_forms(const Tensors& arguments) {
  // Per argument: its dtype, whether it requires a gradient, and its sizes.
  constexpr int64_t kWords = 11;
  const at::Tensor local =
      at::zeros({static_cast<int64_t>(arguments.size()), kWords}, at::kLong);
  auto words = local.accessor<int64_t, 2>();
  const pipeline::TensorForms forms = pipeline::forms_of(arguments);
  for (size_t i = 0; i < forms.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    TESSERA_CHECK(
        forms[i].sizes.size() <= 8,
        "a pipelined list of blocks takes tensors of at most 8 dimensions, but got {}",
        pipeline::describe({forms[i]}));
    words[row][0] = static_cast<int64_t>(forms[i].dtype);
    words[row][1] = forms[i].requires_grad ? 1 : 0;
    words[row][2] = static_cast<int64_t>(forms[i].sizes.size());
    for (size_t d = 0; d < forms[i].sizes.size(); ++d) {
      words[row][static_cast<int64_t>(3 + d)] = forms[i].sizes[d];
    }
  }
  const Tensors all = gather(local, "shapes of pipelined batches");
  for (size_t stage = 0; stage < all.size(); ++stage) {
    TESSERA_CHECK(
        all[stage].equal(local),
        "a pipelined list of blocks got {} on pipeline stage {}, but another shape, dtype or requires_grad on pipeline stage {}. Give all ranks batches of the same shape.",
        describe(forms),
        ranks_.index(),
        stage);
  }
}

PipelinedBatches::Tensors PipelinedBatches::gather(
    const at::Tensor& local,
    const char* label) {
  std::vector<int64_t> sizes = local.sizes().vec();
  sizes.insert(sizes.begin(), ranks_.size());
  const at::Tensor all = at::empty(sizes, local.options());
  group_of(all).all_gather(all, local.contiguous(), label).wait();
  return all.unbind(0);
}

PipelinedBatches::Arguments PipelinedBatches::gather_arguments(
    const at::Tensor& hidden,
    const Tensors& others) {
  const auto leaves_of = [&](const at::Tensor& local) {
    const c10::NoGradGuard no_grad;
    Tensors leaves;
    for (const at::Tensor& one : gather(local.detach(), "pipelined batches")) {
      leaves.push_back(one.clone());
    }
    for (at::Tensor& leaf : leaves) {
      leaf.set_requires_grad(local.requires_grad());
    }
    return leaves;
  };
  Arguments arguments;
  arguments.hidden = leaves_of(hidden);
  for (const at::Tensor& other : others) {
    arguments.others.push_back(
        other.defined() ? leaves_of(other) : Tensors(arguments.hidden.size()));
  }
  return arguments;
}

PipelineForward PipelinedBatches::forward_of(
    const Arguments& arguments,
    const Stage& stage) const {
  return [&arguments, &stage, is_first = ranks_.index() == 0](
             int /*chunk*/, int number, const Tensors& received) -> Tensors {
    const auto at = static_cast<size_t>(number);
    Tensors others;
    for (const Tensors& other : arguments.others) {
      others.push_back(other[at]);
    }
    return {stage(is_first ? arguments.hidden[at] : received[0], others)};
  };
}

at::Tensor PipelinedBatches::local_result(
    std::vector<Tensors> results,
    const at::Tensor& like) {
  const c10::NoGradGuard no_grad;
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.insert(sizes.begin(), ranks_.size());
  at::Tensor all = at::empty(sizes, like.options().requires_grad(false));
  const bool is_last = ranks_.index() + 1 == ranks_.size();
  for (size_t i = 0; is_last && i < results.size(); ++i) {
    const at::Tensor& result = results[i][0];
    TESSERA_CHECK(
        result.sizes() == like.sizes() &&
            result.scalar_type() == like.scalar_type(),
        "pipelined blocks returned {} for {}; they must keep the shape and dtype of the hidden states.",
        describe(pipeline::forms_of({result})),
        describe(pipeline::forms_of({like})));
    all[static_cast<int64_t>(i)].copy_(result);
  }
  group_of(all)
      .broadcast(all, ranks_.size() - 1, "results of pipelined batches")
      .wait();
  return all[ranks_.index()].clone();
}

at::Tensor PipelinedBatches::forward(
    const Arguments& arguments,
    const Stage& stage) {
  return local_result(
      executor_.forward(forward_of(arguments, stage)), arguments.hidden[0]);
}

PipelinedBatches::Tensors PipelinedBatches::backward(
    const Arguments& arguments,
    const at::Tensor& gradient) {
  std::vector<Tensors> gradients;
  for (at::Tensor& one : gather(gradient, "gradients of pipelined batches")) {
    gradients.push_back({std::move(one)});
  }
  executor_.backward(std::move(gradients));
  const c10::NoGradGuard no_grad;
  // Contributions of all pipeline stages; only the first one has any for hidden
  // states.
  Tensors local;
  const auto sum = [&](const Tensors& leaves) {
    if (!leaves[0].defined() || !leaves[0].requires_grad()) {
      return;
    }
    Tensors parts;
    for (const at::Tensor& leaf : leaves) {
      parts.push_back(gradient_of(leaf));
    }
    const at::Tensor all = at::stack(parts);
    group_of(all).all_reduce_sum(all, "gradients of pipelined batches").wait();
    local.push_back(all[ranks_.index()].clone());
  };
  sum(arguments.hidden);
  for (const Tensors& other : arguments.others) {
    sum(other);
  }
  return local;
}

at::Tensor PipelinedBatches::run(
    const at::Tensor& hidden,
    const Tensors& others,
    const Stage& stage) {
  Tensors all{hidden};
  all.insert(all.end(), others.begin(), others.end());
  check_forms(all);
  auto call = c10::make_intrusive<PipelinedCall>();
  call->pipeline = this;
  call->arguments = gather_arguments(hidden, others);
  if (!at::GradMode::is_enabled()) {
    return local_result(
        executor_.evaluate(forward_of(call->arguments, stage), ranks_.size()),
        hidden);
  }
  call->stage = &stage;
  Tensors differentiable;
  for (const at::Tensor& one : all) {
    if (one.defined() && one.requires_grad()) {
      differentiable.push_back(one);
    }
  }
  const at::Tensor anchor = at::empty({0}).set_requires_grad(true);
  at::Tensor result =
      PipelinedFunction::apply(call, at::TensorList(differentiable), anchor);
  call->stage = nullptr;
  return result;
}

} // namespace tessera::engine
