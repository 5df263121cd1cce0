// SPDX-License-Identifier: Apache-2.0
// Construction of an Engine: checks options, plans, shards.
#include "tessera/engine/engine.h"

#include "tessera/engine/activation_offload.h"
#include "tessera/engine/checkpoint/background_saves.h"
#include "tessera/engine/memory/library_memory.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/engine/optim/update_plan.h"
#include "tessera/engine/option_agreement.h"
#include "tessera/engine/registered_parameters.h"
#include "tessera/engine/step_guard.h"
#include "tessera/offload/placement/tier_plan.h"
#include "tessera/offload/placement/tier_stores.h"
#include "tessera/runtime/comm/pattern_use.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"
#include "tessera/sharding/checkpointing/recomputed_operators.h"
#include "tessera/sharding/pages/page_meshes.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/paging/tied_copies.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tessera {

namespace {

const LossScaleOptions& checked(const LossScaleOptions& options) {
  check(options);
  return options;
}

bool uses_float16(const EngineOptions& options) {
  return options.precision.parameters == at::kHalf;
}

void check_shard_ranks(const EngineOptions& options) {
  TESSERA_CHECK(
      options.parallel == nullptr || options.sharding.shard_ranks == 0,
      "wrap: sharding.shard_ranks is {}, but EngineOptions::parallel is set, whose sizes replace it. Set ParallelSizes::shard and data of the mesh (parallel.shard, parallel.data), and leave shard_ranks out.",
      options.sharding.shard_ranks);
}

/// Of a module in float16, where `precision` asks for no other dtype.
void warn_of_unscaled_float16(
    const std::vector<sharding::PageSpec>& pages,
    const EngineOptions& options) {
  if (options.precision.parameters || options.loss_scale.fixed) {
    return;
  }
  for (const sharding::PageSpec& page : pages) {
    if (page.trainable && page.original_dtype == at::kHalf) {
      log_warning(
          "parameter '{}' is float16, and the loss is not scaled: small gradients become zero. Wrap the module in float32 with precision.parameters=float16, which scales the loss dynamically, set loss_scale.fixed (1: as now), or use bfloat16.",
          page.parameters.front().record.name());
      return;
    }
  }
}

/// Of backwards before wrap(): a loop of plain LibTorch resets gradients at the
/// start of its step, one of an engine has nothing to reset there.
void warn_of_earlier_gradients(const std::vector<sharding::PageSpec>& pages) {
  std::string first;
  int64_t count = 0;
  for (const sharding::PageSpec& page : pages) {
    for (const auto& parameter : page.parameters) {
      if (parameter.record.tensor.grad().defined()) {
        first = count++ == 0 ? parameter.record.name() : first;
      }
    }
  }
  if (count > 0) {
    log_warning(
        "wrap: {} parameters have gradients, the first of them '{}': the first step adds them to its own. Call zero_grad() of the module before wrap() if they are left from an earlier step.",
        count,
        first);
  }
}

/// Whether some activations rest on the host.
bool offloads_activations(
    const torch::nn::Module& module,
    const EngineOptions& options) {
  if (options.placement.activations != MemoryTier::kDevice) {
    return true;
  }
  const auto asks = [](const torch::nn::Module& part) {
    const auto* block = dynamic_cast<const CheckpointedModule*>(&part);
    return block != nullptr && block->inputs_on_host;
  };
  const auto modules = module.modules(/*include_self=*/false);
  return asks(module) ||
         std::any_of(modules.begin(), modules.end(), [&](const auto& part) {
           return asks(*part);
         });
}

/// The memory budget of shards and state: memory.host_bytes less what is
/// reserved for activations and for a snapshot, memory.device_bytes less what
/// libraries have taken.
MemoryBudget budget_of_state(
    const EngineOptions& options,
    bool offloads_activations,
    int64_t snapshot,
    int64_t libraries) {
  MemoryBudget memory = options.memory;
  if (memory.device_bytes) {
    *memory.device_bytes -= libraries;
  }
  if (memory.host_bytes && offloads_activations) {
    *memory.host_bytes -= options.offload.activation_host_bytes.value_or(0);
  }
  if (memory.host_bytes) {
    *memory.host_bytes -= snapshot;
    TESSERA_CHECK(
        *memory.host_bytes >= 0,
        "save_in_background takes {} of host memory for a copy of what is saved, but memory.host_bytes is {}, of which {} are for activations; raise memory.host_bytes, use more ranks, or set save_in_background to false.",
        runtime::size_text(snapshot),
        runtime::size_text(*options.memory.host_bytes),
        runtime::size_text(
            *options.memory.host_bytes - *memory.host_bytes - snapshot));
  }
  return memory;
}

/// The options for activations, with the limit that is planned for them.
OffloadOptions with_limit(
    const EngineOptions& options,
    const TierBytes& planned) {
  OffloadOptions offload = options.offload;
  if (options.memory.host_bytes) {
    offload.activation_host_bytes =
        planned[static_cast<size_t>(MemoryTier::kHost)]
               [static_cast<size_t>(MemoryPurpose::kActivations)];
  }
  return offload;
}

/// @throws tessera::Error naming the option that it cannot be combined with.
void check_update_in_backward(
    const EngineOptions& options,
    const LossScaler& scaler) {
  const auto check = [](bool holds,
                        const char* label,
                        const std::string& remedy) {
    TESSERA_CHECK(
        holds,
        "update_in_backward cannot be combined with {}: {}, or set update_in_backward to false.",
        label,
        remedy);
  };
  check(
      !scaler.is_active(),
      "loss scaling, which must see all gradients before any is applied",
      "train in bfloat16");
  check(
      options.sharding.zero_stage > 1 &&
          options.sharding.accumulation != GradientAccumulation::kKeepWhole,
      "gradients that are kept whole until the step",
      "use sharding.zero_stage 2 or 3 with accumulation reduce_each_backward");
  check(
      updates_elements_alone(options.optimizer),
      "an optimizer that uses more than one element at a time",
      "use " + engine::names_of_optimizers(
                   &engine::Optimizer::updates_elements_alone));
  check(
      options.optimizer.overlap != UpdateOverlap::kSpeculate,
      "optimizer.overlap speculate, which is for gradients that may still be clipped",
      "use wait");
}

/// @throws tessera::Error where an optimizer looks at whole parameters and has
///   only parts of them.
void check_updates_of_parts(
    const std::vector<sharding::PageSpec>& pages,
    const engine::OptimizerRules& optimizer) {
  for (const sharding::PageSpec& page : pages) {
    for (const sharding::PagedParameter& parameter : page.parameters) {
      const sharding::ParameterRecord& record = parameter.record;
      const UpdateRule rule = optimizer.settings_for(record.spec.names).rule;
      TESSERA_CHECK(
          !record.spec.is_divided() || updates_elements_alone(rule),
          "wrap: parameter '{}' is partitioned over tensor-parallel ranks, but its optimizer ({}) needs whole parameters. Use {} for it.",
          record.name(),
          name_of(rule),
          engine::names_of_optimizers(
              &engine::Optimizer::updates_elements_alone));
    }
  }
}

/// Without a mesh, the parts of a divided parameter would be taken for copies.
void check_none_divided(const std::vector<sharding::PageSpec>& pages) {
  for (const sharding::PageSpec& page : pages) {
    for (const sharding::PagedParameter& parameter : page.parameters) {
      TESSERA_CHECK(
          !parameter.record.spec.is_divided(),
          "wrap: parameter '{}' is partitioned over tensor-parallel ranks, but EngineOptions::parallel is null, so that the ranks' parts would be averaged. Set it to the mesh of these ranks, a ParallelMesh.",
          parameter.record.name());
    }
  }
}

/// Parts of another mesh would be taken for copies, or for other parts.
void check_divided_by(
    const std::vector<sharding::PageSpec>& pages,
    const ParallelMesh& mesh,
    int rank) {
  const int ranks = mesh.size(ParallelGroup::kTensor);
  const int index = mesh.index(ParallelGroup::kTensor, rank);
  for (const sharding::PageSpec& page : pages) {
    for (const sharding::PagedParameter& parameter : page.parameters) {
      for (const SpecAxis& axis : parameter.record.spec.axes) {
        TESSERA_CHECK(
            axis.name != kTensorAxis || axis.ranks == 1 ||
                (axis.ranks == ranks && axis.rank == index),
            "wrap: parameter '{}' is part {} of {} over tensor-parallel ranks, but in the mesh of EngineOptions::parallel, where tensor is {}, this rank is number {}. Set it to the ParallelMesh by which the layers were partitioned.",
            parameter.record.name(),
            axis.rank,
            axis.ranks,
            ranks,
            index);
      }
    }
  }
}

/// Whether some parameters have an optimizer that exchanges momentum.
bool sends_momentum(
    const std::vector<sharding::PageSpec>& pages,
    const engine::OptimizerRules& rules) {
  return std::any_of(pages.begin(), pages.end(), [&](const auto& page) {
    return page.trainable &&
           std::any_of(
               page.parameters.begin(),
               page.parameters.end(),
               [&](const sharding::PagedParameter& parameter) {
                 return rules.settings_for(parameter.record.spec.names)
                     .rule.optimizer()
                     .sends_momentum();
               });
  });
}

/// Whether all ranks of the model say so. Collective.
bool on_all_ranks(sharding::PageRanks& ranks, bool self_value) {
  const at::Tensor refuses = at::full({1}, self_value ? 0 : 1, at::kInt);
  ranks.max(refuses);
  ranks.max_over_parts(refuses);
  return refuses.item<int>() == 0;
}

/// The shards of the trained pages; none: it is frozen.
std::vector<std::optional<offload::RestingShards>> resting_shards(
    const sharding::PageTable& pages) {
  std::vector<std::optional<offload::RestingShards>> shards;
  for (const auto& page : pages) {
    shards.emplace_back();
    if (page->gradients) {
      shards.back().emplace(offload::RestingShards{
          page->shard(),
          page->separate_master(),
          page->gradients->local_segments()});
    }
  }
  return shards;
}

void log_plan(
    const World& world,
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers,
    const engine::UpdatePlan& updates,
    const engine::MemoryPlan& memory) {
  log_info(
      "{}",
      memory_table(
          formatted(
              "memory of rank 0 of {}, {} (activations on the device not included)",
              world.size(),
              runtime::count_text(static_cast<int64_t>(pages.size()), "group")),
          memory.bytes));
  if (const std::string table = update_table(updates, pages, tiers);
      !table.empty()) {
    log_info("{}", table);
  }
}

} // namespace

void check(const EngineOptions& options) {
  check(options.memory);
  check(options.offload);
  check(options.placement, options.memory);
  const int64_t activations = options.offload.activation_host_bytes.value_or(0);
  TESSERA_CHECK(
      !options.memory.host_bytes || activations <= *options.memory.host_bytes,
      "offload.activation_host_bytes is {}, but memory.host_bytes, the limit for all host memory, is {}; raise memory.host_bytes or lower offload.activation_host_bytes.",
      activations,
      options.memory.host_bytes.value_or(0));
}

Engine::Engine(
    World& world,
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options)
    : module_(std::move(module)),
      ledger_(std::make_unique<MemoryLedger>()),
      scaler_(checked(options.loss_scale), uses_float16(options)) {
  TESSERA_CHECK(module_ != nullptr, "wrap: the module is null.");
  // Before the module is divided: from there on an error would cost it.
  check(options);
  check(options.optimizer);
  const engine::OptimizerRules rules(options.optimizer, options.other_names);
  const bool has_stages = options.parallel != nullptr &&
                          options.parallel->size(ParallelGroup::kPipeline) > 1;
  if (!has_stages) {
    rules.check_all_used(*module_);
  }
  check_shard_ranks(options);
  const sharding::PagerOptions sharding = engine::pager_options(options);
  if (options.update_in_backward) {
    check_update_in_backward(options, scaler_);
  }

  files_ = world.new_communicator("files of the model");
  engine::check_same_ranks(*files_, options);
  // The stages of a dry run are not there.
  if (has_stages && runtime::DryRun::current() == nullptr) {
    rules.check_all_used(*module_, *files_);
    runtime::check_used_on_any_rank(
        sharding::ModuleChoices(
            *module_, options.sharding.modules, options.other_names)
            .patterns(),
        *files_);
  }

  // What is decided before anything is allocated for the module.
  const sharding::PageMeshes meshes =
      options.parallel != nullptr
          ? sharding::page_meshes(world, *options.parallel, *module_)
          : sharding::shard_mesh(
                world.rank(), world.size(), sharding.shard_ranks);
  const std::vector<sharding::PageSpec> pages =
      sharding::plan_pages(*module_, sharding, meshes);
  if (world.rank() == 0) {
    warn_of_earlier_gradients(pages);
  }
  if (options.parallel != nullptr) {
    check_updates_of_parts(pages, rules);
    check_divided_by(pages, *options.parallel, world.rank());
  } else {
    check_none_divided(pages);
  }
  sends_momentum_ = sends_momentum(pages, rules);
  TESSERA_CHECK(
      !sends_momentum_ || !scaler_.is_active(),
      "wrap: {} cannot be combined with loss scaling, as its ranks have different gradients; train in bfloat16.",
      name_of(options.optimizer.rule));
  auto ranks = std::make_unique<sharding::PageRanks>(world, meshes, pages);
  engine::check_same_options(*ranks, options);
  const c10::Device device = pages.front().device;
  // The communicators have taken theirs.
  const int64_t libraries = engine::library_bytes(world, device);
  const bool offloads = offloads_activations(*module_, options);
  const offload::TierNeeds needs = engine::tier_needs(pages, rules, sharding);
  const int64_t snapshot =
      options.save_in_background ? engine::snapshot_bytes(pages, needs) : 0;
  const MemoryBudget budget =
      budget_of_state(options, offloads, snapshot, libraries);
  const offload::TierPlan tiers =
      offload::plan_tiers(needs, options.placement, budget, options.offload);
  const engine::UpdatePlan updates = engine::plan_updates(
      pages, tiers, rules, options.offload, budget, *ranks);
  optimizer_ = std::make_unique<engine::ShardedOptimizer>(
      pages, *ranks, tiers, updates, rules, options.offload);
  norms_on_device_ = on_all_ranks(*ranks, optimizer_->is_all_on_device());
  if (!scaler_.is_active() && !options.update_in_backward && !sends_momentum_ &&
      options.on_nonfinite != OnNonfinite::kApply) {
    guard_ = std::make_unique<engine::StepGuard>(
        options.on_nonfinite, !on_all_ranks(*ranks, device.is_cpu()));
  }
  const sharding::SlotPlan slots(pages, tiers.pages, sharding);
  const engine::MemoryPlan memory = engine::plan_memory(
      {pages,
       tiers,
       slots,
       optimizer_->planned_bytes(),
       libraries,
       offloads,
       snapshot},
      options);
  planned_memory_ = memory.bytes;
  const bool logs = options.log_memory && world.rank() == 0;
  if (logs) {
    log_plan(world, pages, tiers, updates, memory);
  }

  // Memory: stores, pages, the optimizer's state.
  libraries_ =
      ledger_->count(MemoryPurpose::kLibraries, MemoryTier::kDevice, libraries);
  tiers_ =
      std::make_unique<offload::TierStores>(tiers, budget, device, *ledger_);
  const bool overlaps =
      options.update_in_backward || updates.overlap != UpdateOverlap::kOff;
  pager_ = std::make_unique<sharding::Pager>(
      std::move(ranks),
      *module_,
      sharding::PagingPlan{pages, slots, memory.slots},
      sharding,
      *ledger_,
      tiers_->stores(),
      overlaps ? optimizer_.get() : nullptr);
  lineage_ = std::make_unique<engine::CheckpointLineage>(engine::new_lineage());
  optimizer_->allocate_state(
      resting_shards(pager_->pages()), *tiers_, *ledger_);
  sharding::copy_tied_values(*pager_);
  if (options.save_in_background) {
    saves_ = std::make_unique<engine::BackgroundSaves>(
        world, device, *ledger_, pager_->ranks().watch_failures());
  }
  if (offloads) {
    activations_ = std::make_unique<engine::ActivationOffload>(
        *module_,
        options.placement.activations,
        with_limit(options, planned_memory_),
        options.memory.activation_bytes);
    logs_activations_ = logs;
  }
  if (options.recompute_operators) {
    recomputed_operators_ = std::make_unique<runtime::SavedTensorScope>(
        std::make_shared<sharding::OperatorRecomputation>(
            activations_ ? activations_->sink() : nullptr));
  }
  registered_ = std::make_unique<engine::RegisteredParameters>(*module_);
  if (world.rank() == 0) {
    engine::warn_of_assigned_weights(*module_);
    warn_of_unscaled_float16(pages, options);
  }
}

Engine::~Engine() {
  if (pager_ != nullptr) { // not moved from
    pager_->wait_before_memory_is_freed(); // the optimizer's is the first
  }
}

Engine::Engine(Engine&&) noexcept = default;

Engine wrap(torch::nn::Module& module, const EngineOptions& options) {
  // The caller keeps the ownership: a shared_ptr that frees nothing.
  return Engine(
      init(),
      std::shared_ptr<torch::nn::Module>(&module, [](torch::nn::Module*) {}),
      options);
}

Engine wrap(
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options) {
  return Engine(init(), std::move(module), options);
}

} // namespace tessera
