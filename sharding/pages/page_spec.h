// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageSpec` describes a page, i.e. a group of parameters that are unsharded,
// reduced and resharded together, before any memory is allocated for it.

#include "tessera/runtime/kernels/block_format.h"
#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/sharding/groups/module_choices.h"
#include "tessera/sharding/groups/parameter_census.h"
#include "tessera/sharding/pages/page_meshes.h"
#include "tessera/sharding/pages/pager_options.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

/// A parameter and its place in its page's flat buffer.
struct PagedParameter {
  ParameterRecord record;
  size_t index = 0; ///< in the list of all parameters
  runtime::FlatSpan span; ///< in the flat buffer, elements
  /// Whether sums over the parts of a model count what this rank has of it:
  /// false on all tensor-parallel ranks but the first if it is whole on them,
  /// and on all pipeline stages but the first that has it.
  bool counts = true;
};

/// All that placing, planning and allocating need to know of a page; the same
/// on every rank that has it. Of a page of divided experts, only the names
/// differ between ranks with other experts.
struct PageSpec {
  // What belongs together, by group_parameters(). All parameters have the same
  // dtype, requires_grad and frozen_weights, and all or none are of divided
  // experts, and are sent as they are.
  std::string name; ///< path of the module, e.g. "encoder.layer.3"
  std::vector<PagedParameter> parameters; ///< in registration order; not empty
  /// The parameters come from several places in the model, so their gradients
  /// do not arrive together.
  bool scattered = false;
  /// Indices, in registration order, of the blocks that the parameters belong
  /// to. Pages that share a block are used together: they hold parameters of
  /// one block that differ in dtype, requires_grad or of_experts.
  std::vector<int> blocks;
  /// As in ModuleOptions.
  std::optional<bool> reshard_after_forward;
  std::optional<int> zero_stage;
  bool full_precision = false;
  bool is_apart = false; ///< a parameter that is a page of its own
  bool of_experts = false; ///< see [Note: pages of divided experts]
  /// The blocks in which its shards rest and are sent; unset: as they are. See
  /// [Note: frozen weights in blocks].
  std::optional<runtime::BlockFormat> resting_format;

  // The rest, by lay_out().
  int number = 0; ///< in the list of pages
  c10::Device device = at::kCPU; ///< of the parameters
  at::ScalarType dtype = at::kFloat; ///< in which it is all-gathered and used
  at::ScalarType original_dtype = at::kFloat; ///< outside of the engine
  /// The ranks that divide it and hold copies of its shards.
  DeviceMesh mesh = shard_mesh(0, 1, 0);
  /// Of the storages, in order of their first use.
  runtime::FlatLayout layout{{}, 1, 1};
  bool trainable = false;
  /// Whether optimizers update float32 weights that it has beside its shard.
  bool has_separate_master = false;
  /// Whether operators get their other arguments cast to `dtype`.
  bool casts_arguments = false;
  GradientTypes gradients{}; ///< if it is trainable
  bool keeps_full_gradients = false; ///< between the backward passes of a step
  /// Whether its gradients rest in a shard until the step; not if they are
  /// applied during backward, see [Note: applied gradients].
  bool keeps_gradient_shard = false;
  /// Whether it stays unsharded between forward and backward where memory is
  /// not limited.
  bool stays_after_forward = false;
  bool is_tied = false; ///< its weights are used in two places of the model
  /// In what its shards and its gradients are sent; unset: as they are (or
  /// rest).
  std::optional<runtime::BlockFormat> gather_format;
  std::optional<runtime::BlockFormat> reduce_format;
  /// Of its parameter, if other pipeline stages have it too; else empty.
  std::string tied_name;

  /// Of the weights that optimizers update.
  at::ScalarType master_dtype() const {
    return has_separate_master ? at::kFloat : dtype;
  }
  /// This rank's part of the flat buffer.
  runtime::FlatSpan shard() const {
    return layout.shard(mesh.index(kShardAxis));
  }
  /// The number of ranks whose gradients are averaged.
  int gradient_ranks() const {
    return mesh.size(kShardAxis) * mesh.size(kReplicateAxis);
  }
  int64_t shard_bytes() const; ///< of one rank's part of the parameters
  /// The elements of the tensor in which that rests, and their type.
  int64_t resting_numel() const;
  at::ScalarType resting_dtype() const {
    return resting_format ? at::kByte : dtype;
  }
  /// Of a slot in which it is unsharded, in elements of `dtype`: the
  /// parameters, and behind them what arrives of a gather in blocks.
  int64_t gather_slot_numel() const;
  int64_t gather_slot_bytes() const;
  int64_t gradient_shard_bytes() const; ///< 0 if it keeps none
  /// Of what the first step collects, which is not applied in backward yet.
  int64_t first_gradient_bytes() const;
  /// What a slot for whole gradients has behind them to send them in another
  /// format; in elements of their type.
  int64_t reduce_wire_numel() const;
  /// Of a slot for whole gradients, in elements of their type: the gradients,
  /// reduce_wire_numel(), and what GradientTypes::slot_numel() adds.
  /// @param stored whether their shard rests on another tier than the device.
  int64_t gradient_slot_numel(bool stored) const;
  int64_t gradient_slot_bytes(bool stored) const;
};

/// Describes a page that group_parameters() has made.
/// @param number in the list of pages.
/// @param first_index index of the first parameter in the list of all.
PageSpec lay_out(
    PageSpec page,
    int number,
    size_t first_index,
    const PagerOptions& options,
    const DeviceMesh& mesh);

/// Describes all pages of a module.
/// @throws tessera::Error on invalid options, when there are divided experts
///   but no mesh for them, and as ModuleChoices, take_parameter_census() and
///   group_parameters(). Not collective.
std::vector<PageSpec> plan_pages(
    const torch::nn::Module& module,
    const PagerOptions& options,
    const PageMeshes& meshes);

/// The spec of a parameter with the division of its page over the shard ranks.
/// @param parameter of `page`.
TensorSpec sharded_spec(
    TensorSpec spec,
    const PagedParameter& parameter,
    const PageSpec& page);

/// The storages of a page's parameters, each once, in the order of its layout.
std::vector<c10::Storage> storages_of(const PageSpec& page);

/// The number of elements of a storage that holds `dtype`.
int64_t numel_of(const c10::Storage& storage, at::ScalarType dtype);

} // namespace tessera::sharding
