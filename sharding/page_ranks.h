// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MeshRanks` are the ranks that divide a page and hold copies of its shards,
// with the communicators between them; `PageRanks` are those of all pages.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/sharding/page_spec.h"
#include "tessera/sharding/rank_agreement.h"
#include "tessera/sharding/shard_mesh.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::sharding {

/// The ranks of one mesh, and the communicators between them.
class MeshRanks {
 public:
  /// Connects them. Collective over the world; blocks.
  /// @param name of the mesh, for errors.
  /// @param device of the pages.
  MeshRanks(
      World& world,
      const std::string& name,
      const ShardMesh& mesh,
      c10::Device device);

  const ShardMesh& mesh() const {
    return mesh_;
  }
  bool is_divided() const {
    return mesh_.shard_size > 1;
  }
  /// The ranks that shard one replica.
  Communicator& shards() {
    return *shards_;
  }
  /// The same ranks, for reductions: on a device with streams a communicator of
  /// its own, so that all-gathers do not queue behind reductions.
  Communicator& reductions() {
    return reductions_ ? *reductions_ : *shards_;
  }
  /// The ranks that hold the same shard.
  Communicator& replicas() {
    return *replicas_;
  }
  /// Ends all collectives with an error.
  void abort() noexcept;

 private:
  ShardMesh mesh_;
  std::unique_ptr<Communicator> shards_;
  std::unique_ptr<Communicator> reductions_; ///< null: shards_
  std::unique_ptr<Communicator> replicas_;
};

/// Consecutive rows of a tensor, which belong to a page.
struct PageRows {
  const PageSpec* page = nullptr;
  int64_t rows = 1;
};

/// Collective functions must be called by all ranks in the same order.
class PageRanks {
 public:
  /// Connects the ranks. Collective; blocks.
  /// @param world must outlive this object.
  /// @param module the mesh of pages without divided experts, and of buffers.
  /// @param pages of plan_pages().
  /// @throws tessera::Error if the pages are not the same on all ranks, except
  ///   for the names of experts on ranks with other experts.
  PageRanks(
      World& world,
      const ShardMesh& module,
      const std::vector<PageSpec>& pages);
  PageRanks(const PageRanks&) = delete;
  PageRanks& operator=(const PageRanks&) = delete;

  /// Rank in the job, and the number of ranks.
  int rank() const {
    return agreement_.rank();
  }
  int size() const {
    return agreement_.size();
  }
  /// The ranks of a page.
  MeshRanks& of(const PageSpec& page);
  /// Those of all pages but those of divided experts.
  MeshRanks& of_module() {
    return *meshes_.front();
  }
  const MeshRanks& of_module() const {
    return *meshes_.front();
  }

  RankAgreement& agreement() {
    return agreement_;
  }
  /// All ranks, for small collectives on CPU tensors (norms, flags).
  Communicator& control() {
    return agreement_.control();
  }

  /// Describes an intent of a rank for errors.
  std::string describe(const RankIntent& intent) const;

  /// A check for waits that only detects failures of other ranks.
  WaitCheck watch_failures() {
    return agreement_.watch_failures();
  }
  /// Tells the other ranks that this one has failed, and why: they end with an
  /// error instead of waiting for it.
  void abandon(const std::string& reason) noexcept;
  /// Runs `work`, which may fail on this rank alone, e.g. because of a disk; if
  /// it throws, calls abandon().
  void or_abandon(const std::function<void()>& work);

  /// Sums a small CPU tensor over all ranks, in place. Collective; blocks.
  void sum(const at::Tensor& values);
  /// Takes the maximum of a small CPU tensor over all ranks, in place.
  /// Collective; blocks.
  void max(const at::Tensor& values);
  /// Whether all pages have the same mesh, the module's.
  bool have_one_mesh() const {
    return meshes_.size() == 1;
  }
  /// Sums each row of a small tensor over the ranks that shard one replica of
  /// its page, in place. Collective. Does not block if the tensor is on the
  /// parameters' device and that is an accelerator.
  /// @param values [rows, ...].
  /// @param pages of all rows, in their order; the same on all ranks but for
  ///   the names of experts.
  void sum_over_shards(
      const at::Tensor& values,
      const std::vector<PageRows>& pages);

 private:
  /// Names of pages and parameters, which outlive the module's.
  struct Names {
    std::vector<std::string> pages;
    std::vector<std::string> parameters;
  };

  void check_same(const std::vector<PageSpec>& pages);
  void sum_over_shards(MeshRanks& mesh, const at::Tensor& values);

  Names names_;
  RankAgreement agreement_;
  /// Each mesh once, the module's first.
  std::vector<std::unique_ptr<MeshRanks>> meshes_;
};

/// Makes parameters, buffers and the seeds of lazy parameters those of rank 0.
/// Collective; blocks.
void broadcast_module(
    PageRanks& ranks,
    const torch::nn::Module& module,
    const std::vector<PageSpec>& pages);

} // namespace tessera::sharding
