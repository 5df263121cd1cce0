// SPDX-License-Identifier: Apache-2.0
// The public functions of Engine.
#include "tessera/engine/engine.h"

#include "tessera/engine/activation_offload.h"
#include "tessera/engine/checkpoint/background_saves.h"
#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/checkpoint_save.h"
#include "tessera/engine/checkpoint/checkpoint_weights.h"
#include "tessera/engine/checkpoint/model_tensors.h"
#include "tessera/engine/checkpoint/save_weights.h"
#include "tessera/engine/checkpoint/state_loading.h"
#include "tessera/engine/full_values.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/engine/option_agreement.h"
#include "tessera/engine/registered_parameters.h"
#include "tessera/engine/step_guard.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/comm/on_all_ranks.h"
#include "tessera/runtime/comm/rank_ends.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/memory/out_of_memory.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/sharding/interception/gradient_hook.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/pages/page.h"
#include "tessera/sharding/pages/value_hashes.h"
#include "tessera/sharding/paging/gradient_norm.h"
#include "tessera/sharding/paging/held_pages.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/paging/tied_copies.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/weights/weight_files.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

namespace tessera {

namespace {

/// RankIntent::parameter of kClip.
constexpr int64_t kNormIntent = 0;
constexpr int64_t kLimitIntent = 1;

/// Returns which tensor-parallel ranks have other values, the same ones of
/// parameters that they divide and of others; empty: none. Collective.
std::string other_full_values(
    sharding::PageRanks& ranks,
    const sharding::ValueHashes& values) {
  Communicator* const group = ranks.tensor_control();
  if (group == nullptr) {
    return "";
  }
  const auto gathered = [&](const std::string& text) {
    return runtime::gather_texts(
        *group, text, "comparison of whole values", ranks.watch_failures());
  };
  const std::vector<std::string> hashes =
      gathered(std::to_string(values.hash()));
  const auto other =
      std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) {
        return hash != hashes.front();
      });
  if (other == hashes.end()) {
    return "";
  }
  const auto index = static_cast<size_t>(other - hashes.begin());
  const std::vector<std::string> texts = gathered(values.to_text());
  const std::vector<int> all = ranks.model().slice({kTensorAxis}).ranks();
  return formatted(
      "tensor-parallel ranks {} and {} have written other values to '{}'",
      all[0],
      all[index],
      sharding::ValueHashes::from_text(texts[0])
          .other_than(sharding::ValueHashes::from_text(texts[index]))
          .front());
}

/// Ends the error of gradients without the loss scale.
constexpr const char* kOtherBackward =
    "were computed without it, by loss.backward() or by backward() of another engine, or set by hand. Call engine.backward(loss) of this engine, once for the sum of losses that share a forward; add a gradient of your own with engine.reduce(); where one loss trains two modules, wrap a module that contains both; or train in bfloat16 or float32, which need no loss scale.";

/// loss.backward(), with this engine's remedy where LibTorch's would be
/// retain_graph, which Engine::backward() does not have.
void backward_once(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const c10::Error& error) {
    TESSERA_CHECK(
        std::string_view(error.what_without_backtrace())
                .find("backward through the graph a second time") ==
            std::string_view::npos,
        "Engine::backward: another backward has already freed a part of this loss's graph. Losses that share a forward are added and passed to one backward: engine.backward(first + second). (LibTorch: {})",
        error.what_without_backtrace());
    throw;
  }
}

/// Whether something holds of all tensors that are trained.
template <typename Holds>
bool all_trained(const sharding::Pager& pager, const Holds& holds) {
  for (const auto& page : pager.pages()) {
    for (const sharding::PagedParameter& parameter : page->parameters()) {
      const at::Tensor& tensor = parameter.record.tensor;
      if (tensor.requires_grad() && !holds(tensor)) {
        return false;
      }
    }
  }
  return true;
}

/// A pipeline stage may have nothing to train where others have.
bool trains(const sharding::Pager& pager) {
  return !all_trained(pager, [](const at::Tensor&) { return false; });
}

/// Whether the engine sees all gradients arrive: no user has put a hook in the
/// place of its own.
bool sees_gradients(const sharding::Pager& pager) {
  return all_trained(pager, [](const at::Tensor& tensor) {
    return sharding::has_gradient_hook(tensor);
  });
}

/// Gradients of this step that the engine's own backwards have computed.
int64_t arrived_gradients(const sharding::Pager& pager) {
  int64_t count = 0;
  for (const auto& page : pager.pages()) {
    count += page->reductions.arrivals;
  }
  return count;
}

/// Notes the gradients that the user has set, to which a backward adds.
void note_set_gradients(const sharding::Pager& pager) {
  for (const auto& page : pager.pages()) {
    if (page->gradients == nullptr) {
      continue;
    }
    sharding::GradientBucket& bucket = *page->gradients;
    bucket.refresh();
    const auto& parameters = page->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (bucket.is_pending(i) &&
          sharding::has_gradient_hook(parameters[i].record.tensor)) {
        bucket.note_other_backward(i);
      }
    }
  }
}

void begin_backward(
    engine::ShardedOptimizer& optimizer,
    const sharding::Pager& pager,
    const LossScaler& scaler) {
  optimizer.begin_backward(pager.pages(), 1 / scaler.scale());
  if (scaler.is_active()) {
    note_set_gradients(pager);
  }
}

void check_norm_type(const char* function, double p) {
  TESSERA_CHECK(
      p > 0,
      "Engine::{}: the type of the norm, p, is {}; it must be above 0, and infinity gives the largest magnitude.",
      function,
      p);
}

/// The factor by which clip_grad_norm() multiplies gradients: at most 1.
/// @param skips a norm that is not finite changes nothing: the step is skipped.
DeferredScalar clip_factor(double norm, double max_norm, bool skips) {
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 || (skips && !std::isfinite(norm)) ? 1 : factor;
}

/// As above, on the norm's device.
DeferredScalar clip_factor(
    const at::Tensor& norm,
    double max_norm,
    bool skips) {
  const at::Tensor factor = (norm + 1e-6).reciprocal_().mul_(max_norm);
  factor.clamp_max_(1); // keeps NaN
  return DeferredScalar(
      skips ? factor.masked_fill_(norm.isfinite().logical_not_(), 1) : factor);
}

} // namespace

void Engine::check_not_moved(const char* function) const {
  TESSERA_CHECK(
      pager_ != nullptr,
      "Engine::{}: this engine was moved to another variable; use that one.",
      function);
}

void Engine::check_usable(const char* function) const {
  check_not_moved(function);
  TESSERA_CHECK(
      !pager_->unwrapped(),
      "Engine::{}: the module was unwrapped; wrap it again to train it.",
      function);
  optimizer_->check_full();
}

void Engine::check_may_change(const char* function) const {
  check_usable(function);
  const engine::WeightAverages* averages = optimizer_->averages();
  TESSERA_CHECK(
      averages == nullptr || !averages->are_in_use(),
      "Engine::{}: averages are in the place of the weights; end the scope of Engine::ema() first.",
      function);
}

void Engine::check_parameters() const {
  registered_->check(
      *module_, pager_->options().modules, pager_->options().other_names);
  pager_->pages().check_identity();
}

void Engine::backward(const at::Tensor& loss) {
  check_may_change("backward");
  TESSERA_CHECK(
      loss.defined(),
      "Engine::backward: the loss is an undefined tensor; pass what the forward computed.");
  TESSERA_CHECK(
      loss.numel() == 1,
      "Engine::backward: the loss has shape {}; it must be a scalar. Reduce it, e.g. with .mean().",
      loss.sizes());
  TESSERA_CHECK(
      loss.requires_grad(),
      "Engine::backward: the loss does not depend on a parameter that requires a gradient. Was it computed under NoGradGuard?");
  check_parameters();
  // Not in the middle of a step, whose gradients have one scale, nor where
  // pipeline stages may have losses of other types.
  const int stages = pager_->ranks().model().size(sharding::kPipelineAxis);
  if (loss.scalar_type() == at::kHalf && stages == 1 &&
      !pager_->pages().any_gradient()) {
    scaler_.limit_for_float16_loss();
  }
  const runtime::TraceSpan span(
      runtime::TraceLane::kSteps, "backward", device());
  begin_backward(*optimizer_, *pager_, scaler_);
  // Gradients are averaged over the ranks of one stage, and stages add up.
  const double factor = scaler_.scale() / stages;
  const auto engine_backward = pager_->engine_backward();
  const int64_t arrived = arrived_gradients(*pager_);
  reporting_memory("backward", [&] {
    // In float32 no scaled loss overflows.
    const bool widens = loss.scalar_type() == at::kHalf;
    backward_once(
        factor == 1 ? loss : (widens ? loss.to(at::kFloat) : loss) * factor);
  });
  // No error: a rank without data may pass a loss of nothing, and others wait.
  if (!warned_of_other_loss_ && arrived_gradients(*pager_) == arrived &&
      trains(*pager_) && sees_gradients(*pager_)) {
    warned_of_other_loss_ = true;
    log_warning(
        "backward of the engine: the loss gave no parameter of the wrapped module a gradient. Compute it from what the module's forward returns, without detach(); for a loss of another module, call its own backward. (Later ones are not reported.)");
  }
}

std::vector<at::Tensor> Engine::run_pipeline(
    PipelineExecutor& stage,
    const PipelineCallbacks& callbacks) {
  check_may_change("run_pipeline");
  check_parameters();
  const runtime::TraceSpan span(
      runtime::TraceLane::kSteps, "forwards and backwards", device());
  begin_backward(*optimizer_, *pager_, scaler_);
  const auto engine_backward = pager_->engine_backward();
  std::vector<at::Tensor> losses;
  const auto watch = pager_->ranks().stage_waits().watch_run();
  reporting_memory("run_pipeline", [&] {
    losses = stage.run(callbacks, scaler_.scale(), watch);
  });
  ran_pipeline_ = true;
  return losses;
}

void Engine::settle_gradients(const sharding::RankIntent& intent) {
  pager_->settle_gradients(intent);
  const bool is_of_all = intent.kind == sharding::RankIntent::Kind::kStep ||
                         intent.kind == sharding::RankIntent::Kind::kClip;
  if (is_of_all && runtime::DryRun::current() == nullptr) {
    const std::string clipping = optimizer_->clipping();
    pager_->ranks().check_same_over_parts(
        pager_->ranks().describe(intent) +
        (clipping.empty() ? "" : " (" + clipping + ")"));
  }
  sharding::add_tied_gradients(*pager_);
}

void Engine::reporting_memory(
    const char* function,
    const std::function<void()>& work) {
  const auto fail = [&](const char* reason) {
    const std::string message = memory_table(
        formatted(
            "Engine::{} ran out of memory: {}\n{}\nDevice memory held by rank {} (activations not included)",
            function,
            reason,
            runtime::kMemoryRemedy,
            pager_->ranks().of_module().mesh().rank()),
        allocated_memory());
    pager_->ranks().abandon(message);
    throw Error(message);
  };
  try {
    work();
  } catch (const c10::Error& error) {
    if (!runtime::is_out_of_memory(error)) {
      throw;
    }
    fail(error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    fail(error.what());
  }
}

void Engine::check_keeps_gradients(const char* function) const {
  check_usable(function);
  TESSERA_CHECK(
      !pager_->options().update_in_backward,
      "Engine::{}: with update_in_backward, gradients are applied and freed during backward. Remove this call, or set update_in_backward to false.",
      function);
  TESSERA_CHECK(
      !sends_momentum_,
      "Engine::{}: this optimizer exchanges momentum, and the ranks have different gradients. Remove this call and set training.clip_grad_norm to 0, or use AdamW.",
      function);
}

DeferredScalar Engine::clip_grad_norm(double max_norm, double p) {
  TESSERA_CHECK(
      max_norm > 0,
      "Engine::clip_grad_norm: max_norm is {}; it must be above 0.",
      max_norm);
  check_norm_type("clip_grad_norm", p);
  optimizer_->note_clipping("clip_grad_norm", max_norm);
  const DeferredScalar norm = grad_norm(p);
  const bool skips = scaler_.is_active() || (guard_ && guard_->looks_at(norm));
  pager_->pages().multiply_gradients(
      norm.is_deferred() ? clip_factor(norm.on_device(), max_norm, skips)
                         : clip_factor(norm.value(), max_norm, skips));
  return norm;
}

DeferredScalar Engine::grad_norm(double p) {
  check_keeps_gradients("grad_norm");
  const runtime::TraceSpan span(
      runtime::TraceLane::kOptimizer, "norm of the gradients", device());
  check_norm_type("grad_norm", p);
  const c10::NoGradGuard no_grad;
  settle_gradients(
      {sharding::RankIntent::Kind::kClip,
       std::bit_cast<int64_t>(p),
       kNormIntent});
  sharding::GradientSums& sums = optimizer_->gradient_sums(pager_->pages(), p);
  const DeferredScalar norm =
      norms_on_device_
          ? DeferredScalar(
                gradient_norm_on_device(*pager_, sums, p).div_(scaler_.scale()))
          : DeferredScalar(gradient_norm(*pager_, sums, p) / scaler_.scale());
  if (guard_) {
    guard_->set_norm(*pager_, norm, p);
  }
  return norm;
}

void Engine::multiply_gradients(double factor) {
  check_keeps_gradients("multiply_gradients");
  const c10::NoGradGuard no_grad;
  if (guard_) {
    guard_->forget_norm(); // finite gradients may overflow
  }
  optimizer_->note_clipping("multiply_gradients", factor);
  pager_->pages().multiply_gradients(factor);
}

void Engine::clip_grad_value(double limit) {
  check_keeps_gradients("clip_grad_value");
  TESSERA_CHECK(
      limit > 0,
      "Engine::clip_grad_value: the limit is {}; it must be above 0.",
      limit);
  optimizer_->note_clipping("clip_grad_value", limit);
  settle_gradients(
      {sharding::RankIntent::Kind::kClip,
       std::bit_cast<int64_t>(limit),
       kLimitIntent});
  sharding::clamp_gradients(*pager_, limit * scaler_.scale());
}

void Engine::reduce(const at::Tensor& parameter, const at::Tensor& gradient) {
  check_keeps_gradients("reduce");
  const size_t index = pager_->pages().find(parameter);
  const auto* division = engine::division_of(parameter);
  const bool is_full =
      division != nullptr && gradient.defined() &&
      gradient.sizes() == c10::IntArrayRef(division->spec.sizes);
  TESSERA_CHECK(
      is_full || (gradient.defined() && gradient.sizes() == parameter.sizes()),
      "Engine::reduce: the gradient of '{}' has shape {}; the parameter's is {}{}.",
      pager_->pages().parameter(index).record.name(),
      gradient.defined() ? gradient.sizes() : c10::IntArrayRef{},
      parameter.sizes(),
      division == nullptr ? ""
                          : formatted(
                                " on this rank, of {}",
                                c10::IntArrayRef(division->spec.sizes)));
  const at::Tensor local =
      is_full ? engine::local_value_of(gradient, parameter).contiguous()
              : gradient;
  sharding::Page& page = pager_->pages().entries()[index].page;
  // Copies of one parameter are averaged over, as over ranks: their sum
  // follows.
  const double copies =
      page.ranks.copies() == nullptr ? 1 : page.ranks.copies()->size();
  const double factor = scaler_.scale() / copies;
  pager_->add_gradient(index, factor == 1 ? local : local * factor);
  page.gradients->note_passed_by_user();
}

bool Engine::step() {
  check_may_change("step");
  sharding::check_none_held(pager_->pages(), "Engine::step");
  check_parameters();
  const runtime::TraceSpan span(
      runtime::TraceLane::kOptimizer, "step", device());
  const c10::NoGradGuard no_grad;
  try {
    settle_gradients(
        {sharding::RankIntent::Kind::kStep,
         optimizer_->hash_of_settings(),
         std::bit_cast<int64_t>(optimizer_->learning_rate())});
  } catch (const sharding::OtherSettingsError& error) {
    // All ranks of the comparison are here.
    engine::refuse_other_settings(
        pager_->ranks(), optimizer_->settings(), error.what());
  }
  const sharding::Page* lost = pager_->pages().find_lost_update();
  TESSERA_CHECK(
      lost == nullptr,
      "Engine::step: gradients of group '{}' were dropped (zero_grad() of the module) after backward had applied them (update_in_backward): they are in the weights. If gradients may be dropped, set update_in_backward to false; to go on, load a checkpoint.",
      lost == nullptr ? std::string() : lost->name());
  TESSERA_CHECK(
      std::exchange(ran_pipeline_, false) || pager_->pages().any_gradient() ||
          !trains(*pager_),
      "Engine::step: no parameter has a gradient. Call engine.backward(loss) first, with a loss computed from the wrapped module.");
  TESSERA_CHECK(
      optimizer_->began_backward() || !scaler_.is_active() ||
          !pager_->pages().any_gradient(),
      "Engine::step: the gradients are divided by the loss scale of {}, but {}",
      scaler_.scale(),
      kOtherBackward);
  const auto other = pager_->pages().find_other_backward();
  TESSERA_CHECK(
      !other || !scaler_.is_active(),
      "Engine::step: the gradients are divided by the loss scale of {}, but those of '{}' {}",
      scaler_.scale(),
      pager_->pages().parameter(other.value_or(0)).record.name(),
      kOtherBackward);
  // All-gathers that were planned and then not used may still read shards.
  pager_->wait_for_gather_lane();
  sharding::NonfiniteGradients nonfinite;
  reporting_memory("step", [&] {
    if (pager_->ranks().model().size(kTensorAxis) > 1 &&
        !pager_->options().update_in_backward &&
        runtime::DryRun::current() == nullptr) {
      optimizer_->check_tensor_ranks(*pager_);
    }
    if (scaler_.is_active()) {
      nonfinite = sharding::find_nonfinite_gradients(
          *pager_, optimizer_->gradient_sums(pager_->pages(), 2));
    } else if (guard_) {
      nonfinite = guard_->find(*pager_, *optimizer_);
    }
    if (nonfinite.any) {
      optimizer_->skip_step();
    } else {
      optimizer_->step(*pager_, 1 / scaler_.scale());
    }
    pager_->begin_next_step();
  });
  if (scaler_.is_active()) {
    scaler_.update(nonfinite.any);
  }
  runtime::count_step();
  if (nonfinite.any && guard_) {
    report_nonfinite(nonfinite);
  }
  if (std::exchange(logs_activations_, false)) {
    log_info("{}", first_step_text(stats().activations));
  }
  return !nonfinite.any;
}

/// Of a step that was not made.
void Engine::report_nonfinite(const sharding::NonfiniteGradients& found) const {
  const std::string problem =
      engine::nonfinite_text(found, optimizer_->steps() + 1);
  if (guard_->stops()) {
    throw NonfiniteGradientError(
        problem,
        "The weights are as before the step. Check the loss and the data of the step, or lower the learning rate; on_nonfinite=skip leaves such steps out.");
  }
  if (files_->rank() == 0) {
    log_warning("{}: the step is skipped", problem);
  }
}

void Engine::zero_grad() {
  check_usable("zero_grad");
  TESSERA_CHECK(
      !pager_->pages().updated_in_backward(),
      "Engine::zero_grad: backward has already applied these gradients (update_in_backward), and they cannot be dropped. Call engine.step(), which ends the step; if gradients may be dropped, as those of a bad batch, set update_in_backward to false.");
  module_->zero_grad();
}

at::Tensor Engine::grad(const at::Tensor& parameter) {
  check_keeps_gradients("grad");
  const c10::NoGradGuard no_grad;
  const size_t index = pager_->pages().find(parameter);
  sharding::Page& page = pager_->pages().entries()[index].page;
  pager_->settle_gradients(
      {sharding::RankIntent::Kind::kReadGradient,
       page.number(),
       static_cast<int64_t>(index)});
  sharding::add_tied_gradients_to_read(*pager_, page, "Engine::grad");
  const at::Tensor gradient = engine::full_gradient_of(
      pager_->scopes().full_gradient(index), parameter);
  return gradient.defined() && scaler_.is_active()
             ? gradient.div(scaler_.scale())
             : gradient;
}

GatherScope Engine::gather(const GatherOptions& options) {
  options.writable ? check_may_change("gather") : check_usable("gather");
  std::vector<sharding::Page*> pages;
  for (const auto& page : pager_->pages()) {
    pages.push_back(page.get());
  }
  return {
      pager_->scopes(),
      lifetime_,
      std::move(pages),
      options.writable,
      /*on_all_stages=*/true};
}

GatherScope Engine::gather(
    at::TensorList parameters,
    const GatherOptions& options) {
  options.writable ? check_may_change("gather") : check_usable("gather");
  return {
      pager_->scopes(),
      lifetime_,
      pages_of(parameters),
      options.writable,
      /*on_all_stages=*/false};
}

GatherScope Engine::gather(
    const torch::nn::Module& part,
    const GatherOptions& options) {
  std::vector<at::Tensor> sharded;
  for (const at::Tensor& parameter : part.parameters()) {
    if (sharding::has_page_key(parameter)) { // ignored ones are whole anyway
      sharded.push_back(parameter);
    }
  }
  return gather(sharded, options);
}

std::vector<sharding::Page*> Engine::pages_of(at::TensorList tensors) const {
  const sharding::PageTable& pages = pager_->pages();
  std::vector<sharding::Page*> found;
  for (const at::Tensor& tensor : tensors) {
    found.push_back(&pages.entries()[pages.find(tensor)].page);
  }
  std::sort(found.begin(), found.end(), [](const auto* a, const auto* b) {
    return a->number() < b->number();
  });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

EmaScope Engine::ema() {
  check_may_change("ema");
  TESSERA_CHECK(
      optimizer_->averages() != nullptr,
      "Engine::ema: no averages are kept; set OptimizerOptions::ema_decay (optimizer.ema_decay), e.g. to 0.999.");
  TESSERA_CHECK(
      !pager_->pages().any_gradient(),
      "Engine::ema: parameters have gradients, which the scope would drop. Call step() or zero_grad() first.");
  for (const auto& page : pager_->pages()) {
    TESSERA_CHECK(
        page->pins.all == 0,
        "Engine::ema: group '{}' is held by a scope of Engine::gather(), which has the weights, not their averages. Open the scope of ema() first, and that of gather() inside it.",
        page->name());
  }
  return {*pager_, *optimizer_, lifetime_};
}

int64_t Engine::ema_steps() const {
  const engine::WeightAverages* averages = optimizer_->averages();
  return averages == nullptr ? 0 : averages->steps();
}

void Engine::for_each_parameter(
    const std::function<void(const std::string&, const at::Tensor&)>& visit,
    bool writable) {
  writable ? check_may_change("for_each_parameter")
           : check_usable("for_each_parameter");
  if (writable) {
    sharding::check_none_held(pager_->pages(), "Engine::for_each_parameter");
  }
  check_parameters();
  TESSERA_CHECK(
      !writable || !pager_->pages().updated_in_backward(),
      "Engine::for_each_parameter: backward has already applied gradients of this step (update_in_backward), and a writable visit drops the rest of it. Call engine.step(), which ends the step, before it.");
  const c10::NoGradGuard no_grad;
  if (writable) {
    optimizer_->finish_updates();
    pager_->settle_gradients();
    pager_->wait_for_gather_lane();
  }
  sharding::WrittenValues written; // compared when all of it is written
  written.is_pending = written.on_all_stages = true;
  sharding::ValueHashes full_values; // alike on tensor-parallel ranks
  for (const auto& page : pager_->pages()) {
    at::Tensor full = pager_->scopes().full_master(*page);
    if (!writable) {
      full = full.to(page->original_dtype());
    }
    for (size_t i = 0; i < page->parameters().size(); ++i) {
      const auto& record = page->parameters()[i].record;
      const at::Tensor local = page->view_of(full, i);
      const at::Tensor value = engine::full_value_of(local, record.tensor);
      const auto& names = record.spec.names;
      // What is added to a value must not be added once for each name.
      const size_t count = writable ? 1 : names.size();
      for (size_t k = 0; k < count; ++k) {
        visit(names[k], value);
      }
      if (writable && pager_->ranks().tensor_control() != nullptr) {
        full_values.add(names.front(), value);
        if (engine::division_of(record.tensor) != nullptr) {
          local.copy_(engine::local_value_of(value, record.tensor));
        }
      }
    }
    if (writable) {
      pager_->scopes().add_hashes(*page, full, written);
      // One rank that has all of it was given the shard itself.
      const runtime::FlatSpan local = page->spec().shard();
      sharding::GatherScopes::write_master(
          *page,
          full.numel() == local.numel
              ? full
              : full.narrow(0, local.begin, local.numel));
    }
  }
  if (writable) {
    pager_->invalidate();
    pager_->ranks().written() = std::move(written);
    pager_->scopes().check_written(/*on_all_stages=*/true);
    const std::string problem = pager_->ranks().first_over_parts(
        other_full_values(pager_->ranks(), full_values));
    TESSERA_CHECK(
        problem.empty(),
        "for_each_parameter(): {}, which they divide; each rank's part of it is now as this rank wrote it. Write the same whole values on every rank, and load a checkpoint to go on.",
        problem);
  }
}

LoadWeightsReport Engine::load_weights(
    const std::filesystem::path& path,
    const LoadWeightsOptions& options) {
  check_may_change("load_weights");
  sharding::check_none_held(pager_->pages(), "Engine::load_weights");
  if (saves_) {
    saves_->finish();
  }
  // Each rank opens files of its own, and may be the only one that cannot.
  pager_->agree_on_files(sharding::FileUse::kLoadWeights);
  const auto watch =
      pager_->ranks().stage_waits().watch_stages("loads weights");
  std::optional<sharding::WeightFiles> files;
  runtime::on_all_ranks(
      *files_,
      "load_weights: opening the files",
      [&] {
        TESSERA_CHECK(
            !options.optimizer_state || engine::is_checkpoint(path),
            "Engine::load_weights: optimizer_state is set, but {} is not a checkpoint of Engine::save(); only those have it.",
            path);
        files = engine::open_weights(path);
      },
      watch);
  const std::string wanted =
      options.optimizer_state ? "it is set" : "it is not set";
  const std::string others = runtime::find_differences(
      *files_, wanted, wanted, "whether optimizer state is loaded", watch);
  TESSERA_CHECK(
      others.empty(),
      "Engine::load_weights: the ranks have different options optimizer_state:{}\nGive all ranks the same.",
      others);
  LoadWeightsOptions weights = options;
  weights.optimizer_state = false;
  LoadWeightsReport report = load_weights(*files, weights);
  if (options.optimizer_state) {
    engine::load_optimizer_state(checkpoint_subject({}), path, report);
  }
  return report;
}

LoadWeightsReport Engine::load_weights(
    const sharding::WeightFiles& files,
    const LoadWeightsOptions& options) {
  check_may_change("load_weights");
  sharding::check_none_held(pager_->pages(), "Engine::load_weights");
  TESSERA_CHECK(
      !options.optimizer_state,
      "Engine::load_weights: optimizer_state is set; give the path of a checkpoint instead of open files.");
  check_parameters();
  optimizer_->finish_updates();
  if (engine::WeightAverages* averages = optimizer_->averages()) {
    averages->set_steps(0); // of other weights
  }
  LoadWeightsOptions load = options;
  if (load.other_names.empty()) {
    load.other_names = pager_->options().other_names;
  }
  return load_sharded_weights(*pager_, *module_, files, load, *files_);
}

void Engine::save_weights(const std::filesystem::path& path) {
  ModelTensors model = model_tensors();
  engine::save_weights(model, path);
}

ModelTensors Engine::model_tensors() {
  check_usable("model_tensors");
  check_parameters();
  return {*pager_, *files_, *module_};
}

void Engine::unwrap() {
  check_may_change("unwrap");
  sharding::check_none_held(pager_->pages(), "Engine::unwrap");
  if (saves_) {
    saves_->finish();
  }
  optimizer_->finish_updates();
  pager_->unwrap();
}

void Engine::sum_over_ranks(const at::Tensor& values) {
  check_not_moved("sum_over_ranks");
  const at::Tensor packed = values.contiguous();
  pager_->sum_over_ranks(packed);
  pager_->ranks().sum_over_model(packed);
  if (!packed.is_same(values)) {
    values.copy_(packed);
  }
}

void Engine::check_same_values(
    const std::string& function,
    const std::vector<std::pair<std::string, at::Tensor>>& values) {
  check_usable("check_same_values");
  sharding::ValueHashes hashes;
  for (const auto& [name, value] : values) {
    hashes.add(name, value);
  }
  std::string problem;
  if (const auto difference = pager_->scopes().compare(hashes)) {
    problem = formatted(
        "{}: {} pass other values of {}; nothing has changed. Pass the same ones on every rank (a new part needs the same seed on all of them), or save those of one rank to a file and call Engine::load_weights() on every rank.",
        function,
        difference->ranks,
        difference->parameters);
  }
  problem = pager_->ranks().first_over_parts(problem); // the same on all
  if (problem.empty()) {
    problem = pager_->ranks().first_over_parts(
        other_full_values(pager_->ranks(), hashes));
    problem =
        problem.empty()
            ? problem
            : formatted(
                  "{}: {}; nothing has changed. Pass the same whole values on every rank.",
                  function,
                  problem);
  }
  TESSERA_CHECK(problem.empty(), "{}", problem);
}

std::function<void()> Engine::watch_failures() {
  check_not_moved("watch_failures");
  return pager_->ranks().watch_failures();
}

std::filesystem::path Engine::save(
    const std::filesystem::path& folder,
    const std::vector<Checkpointable*>& states,
    int keep_last) {
  check_can_save("save");
  if (saves_) {
    saves_->finish();
  }
  return engine::CheckpointSave(checkpoint_subject(states), folder, keep_last)
      .write(*files_, pager_->ranks().watch_failures());
}

PendingSave Engine::save_in_background(
    const std::filesystem::path& folder,
    const std::vector<Checkpointable*>& states,
    int keep_last) {
  check_can_save("save_in_background");
  TESSERA_CHECK(
      saves_,
      "Engine::save_in_background: there is no memory for a copy of the state. Set EngineOptions::save_in_background.");
  return saves_->begin(checkpoint_subject(states), folder, keep_last);
}

void Engine::check_can_save(const char* function) const {
  check_may_change(function);
  check_parameters();
  if (guard_) {
    guard_->check_last_step();
  }
  TESSERA_CHECK(
      !pager_->pages().updated_in_backward(),
      "Engine::{}: backward has already updated some groups (update_in_backward). Call step() first.",
      function);
  if (pager_->pages().any_gradient() && files_->rank() == 0) {
    log_warning(
        "{}: there are gradients, which checkpoints do not contain; a run that loads this one begins a step. Save between step() and the next backward().",
        function);
  }
}

int64_t Engine::load(
    const std::filesystem::path& path,
    const std::vector<Checkpointable*>& states) {
  check_may_change("load");
  sharding::check_none_held(pager_->pages(), "Engine::load");
  check_parameters();
  if (saves_) {
    saves_->finish();
  }
  return engine::load_checkpoint(checkpoint_subject(states), path);
}

engine::CheckpointSubject Engine::checkpoint_subject(
    const std::vector<Checkpointable*>& states) {
  TESSERA_CHECK(
      std::find(states.begin(), states.end(), nullptr) == states.end(),
      "Engine::save and load: a null pointer is among the Checkpointables.");
  return {*pager_, *optimizer_, *module_, *files_, scaler_, *lineage_, states};
}

const std::string& Engine::lineage() const {
  check_not_moved("lineage");
  return lineage_->id;
}

double Engine::learning_rate() const {
  check_not_moved("learning_rate");
  return optimizer_->learning_rate();
}

void Engine::set_learning_rate(double lr) {
  check_not_moved("set_learning_rate");
  TESSERA_CHECK(
      lr >= 0 && std::isfinite(lr),
      "Engine::set_learning_rate: {} is not a learning rate; it must be finite and at least 0.",
      lr);
  TESSERA_CHECK(
      lr == optimizer_->learning_rate() || pager_->unwrapped() ||
          !pager_->pages().updated_in_backward(),
      "Engine::set_learning_rate: backward has already updated some groups (update_in_backward). Set the rate before the first backward of a step.");
  optimizer_->set_learning_rate(lr);
}

std::vector<at::Tensor> Engine::trained_parameters() const {
  check_not_moved("trained_parameters");
  std::vector<at::Tensor> tensors;
  for (const engine::OptimizedParameter& parameter :
       std::as_const(*optimizer_).parameters()) {
    tensors.push_back(parameter.paged->record.tensor);
  }
  return tensors;
}

void Engine::set_parameter_options(
    const at::Tensor& parameter,
    const ParameterRule& rule,
    size_t group) {
  check_not_moved("set_parameter_options");
  ParameterRule checked = rule;
  checked.pattern = ".*";
  runtime::check_fields("optimizer.parameters", checked);
  if (rule.rule) {
    rule.rule->optimizer().check(rule.rule->options());
  }
  TESSERA_CHECK(
      pager_->unwrapped() || !pager_->pages().updated_in_backward(),
      "Engine::set_parameter_options: backward has already updated some groups (update_in_backward). Call it before the first backward of a step.");
  // Numbers of rules at wrap() are below this.
  constexpr size_t kFirst = size_t{1} << 32U;
  optimizer_->set_parameter_options(parameter, rule, kFirst + group);
}

MemoryBytes Engine::measured_memory(MemoryTier tier) const {
  check_not_moved("measured_memory");
  MemoryBytes bytes = allocated_memory(tier);
  if (tier == MemoryTier::kDevice) {
    bytes[static_cast<size_t>(MemoryPurpose::kReduceSlots)] +=
        pager_->unallocated_bytes();
    for (const auto& page : pager_->pages()) {
      if (page->gradients && !page->gradients->shard().defined()) {
        bytes[static_cast<size_t>(MemoryPurpose::kGradients)] +=
            page->spec().gradient_shard_bytes();
      }
    }
  }
  return bytes;
}

MemoryBytes Engine::allocated_memory(MemoryTier tier) const {
  check_not_moved("allocated_memory");
  MemoryBytes bytes = ledger_->live_bytes(tier);
  if (tier == MemoryTier::kHost) {
    // They have a ledger of their own: graphs may outlive the engine.
    bytes[static_cast<size_t>(MemoryPurpose::kActivations)] +=
        stats().activations.host_slab_bytes;
  }
  return bytes;
}

c10::Device Engine::device() const {
  check_not_moved("device");
  return pager_->pages()[0].device();
}

TransferWaits& Engine::transfer_waits() {
  check_not_moved("transfer_waits");
  return pager_->transfer_waits();
}

EngineStatistics Engine::stats() const {
  check_not_moved("stats");
  return {
      pager_->statistics(),
      optimizer_->update_statistics(),
      activations_ ? activations_->statistics() : ActivationStatistics{}};
}

std::vector<SavedByProducer> Engine::saved_activations() const {
  return activations_ ? activations_->saved_by_producer()
                      : std::vector<SavedByProducer>{};
}

} // namespace tessera
