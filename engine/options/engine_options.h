// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EngineOptions` are the options of `wrap()`.

#include "tessera/engine/optim/loss_scaler.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/offload/options/memory_budget.h"
#include "tessera/offload/options/offload_options.h"
#include "tessera/offload/options/placement_options.h"
#include "tessera/runtime/core/other_names.h"
#include "tessera/sharding/groups/precision.h"
#include "tessera/sharding/pages/sharding_options.h"

namespace tessera {

class ParallelMesh;

/// What step() does with a gradient that is not finite on some rank.
enum class OnNonfinite {
  /// The weights stay as they are, and step() throws NonfiniteGradientError on
  /// all ranks.
  kStop,
  /// The step is skipped with a warning, as with loss scaling.
  kSkip,
  kApply, ///< no step looks at its gradients
};

struct EngineOptions {
  /// How parameters are grouped, prefetched and initialized.
  ShardingOptions sharding;
  /// The dtypes of parameters, gradients and buffers.
  PrecisionPolicy precision;
  /// What each tier has room for.
  MemoryBudget memory;
  /// Which tier each kind of thing rests on.
  PlacementOptions placement;
  OffloadOptions offload;
  LossScaleOptions loss_scale;
  OptimizerOptions optimizer;
  /// Further names of parameters, e.g. those in a checkpoint. Patterns match
  /// them, too: those of optimizer.parameters and of optimizers (Muon's), of
  /// load_weights() and inspect_model(), and paths of sharding.modules, which
  /// also match modules by what these names imply. `tessera train` sets them
  /// for models of the zoo.
  OtherNames other_names;
  /// Of gradients that are not finite. With loss scaling, such steps are always
  /// skipped. It has no effect with update_in_backward, which applies gradients
  /// before all are known, nor with optimizers that exchange momentum. kStop
  /// does not wait for an accelerator, and so does not keep gradients there
  /// from the weights, unless updates on the host have clip_grad_norm() wait
  /// anyway: save() throws, if clip_grad_norm() or grad_norm() was called in
  /// the last step. kSkip waits in every step.
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  /// Updates groups during Engine::backward() once their gradients are final,
  /// so that these need no memory and a step ends sooner; zero_grad() then
  /// throws. The first step, which records when they are final, and other
  /// backwards collect them: a budget has to have room for that. Only for
  /// optimizers that update each element independently, without loss scaling
  /// and without clipping. The numbers are the same. If backward throws, the
  /// groups updated until then stay updated.
  bool update_in_backward = false;
  /// Results of cheap operators of any module (GELU, SiLU, products, dropout on
  /// the CPU) are not kept for the operators that take them, but computed again
  /// in backward from what the cheap operator itself keeps
  /// ([Note: recomputed operators]). The numbers are the same, bit for bit. If
  /// several engines exist, the options of the latest one hold.
  bool recompute_operators = false;
  /// The mesh, if ranks also divide layers (tensor, pipeline) and the module is
  /// this rank's part of the model. Parameters are sharded over the ranks that
  /// have the same part, `shard` x `context` of the mesh; gradients are also
  /// averaged over the ranks that train the part on other batches. Experts that
  /// ranks divide (`expert` of the mesh) are sharded over the ranks that have
  /// the same ones. Norms, the loss scale and the contents of files are those
  /// of the whole model: parameters of a pipeline stage have the names that
  /// they have in the whole model. Takes the place of
  /// ShardingOptions::shard_ranks, which must then be 0. Not owned; used by
  /// wrap() only. Null: every rank has the whole module.
  const ParallelMesh* parallel = nullptr;
  /// Engine::save_in_background() may be called: training waits for a copy of
  /// what is saved, in host memory, but not for the disk. The memory plan has
  /// room for the copy.
  bool save_in_background = false;
  /// Rank 0 logs the memory table before the first step.
  bool log_memory = true;
};

} // namespace tessera
