// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MeshRanks` are the ranks that divide a page and hold copies of its shards,
// with the communicators between them; `PageRanks` are those of all pages and
// of the model that the pages belong to.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/sharding/pages/page_meshes.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/pages/stage_waits.h"
#include "tessera/sharding/pages/value_hashes.h"
#include "tessera/sharding/plans/rank_agreement.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// The ranks of one mesh, and the communicators between them.
class MeshRanks {
 public:
  /// Of meshes with the same ranks along an axis, the communicators are the
  /// same.
  struct Communicators {
    Communicator* shards;
    Communicator* reductions;
    Communicator* replicas;
    Communicator* parts = nullptr;
    Communicator* copies = nullptr;
    Communicator* copies_control = nullptr;
  };
  MeshRanks(DeviceMesh mesh, const Communicators& communicators)
      : mesh_(std::move(mesh)), communicators_(communicators) {}

  const DeviceMesh& mesh() const {
    return mesh_;
  }
  bool is_divided() const {
    return shards().size() > 1;
  }
  /// The ranks that shard one replica.
  Communicator& shards() const {
    return *communicators_.shards;
  }
  /// The same ranks, for reductions: on a device with streams a communicator of
  /// its own, so that all-gathers do not queue behind reductions.
  Communicator& reductions() const {
    return *communicators_.reductions;
  }
  /// The ranks that hold the same shard.
  Communicator& replicas() const {
    return *communicators_.replicas;
  }
  /// The ranks with this shard of other experts; null: experts are not divided,
  /// or the pages are on the CPU.
  Communicator* parts() const {
    return communicators_.parts;
  }
  /// The ranks of all pipeline stages that have a copy of this shard, and the
  /// same ranks for small CPU tensors; null: no other stage has one.
  Communicator* copies() const {
    return communicators_.copies;
  }
  Communicator* copies_control() const {
    return communicators_.copies_control;
  }

 private:
  DeviceMesh mesh_;
  Communicators communicators_;
};

/// Consecutive rows of a tensor, which belong to a page.
struct PageRows {
  const PageSpec* page = nullptr;
  int64_t rows = 1;
};

/// Collective functions must be called by all ranks in the same order.
class PageRanks {
 public:
  /// Connects the ranks. Collective over the job; blocks.
  /// @param meshes of plan_pages(), which gave `pages`.
  /// @throws tessera::Error if the pages are not the same on all ranks, except
  ///   for the names of experts on ranks with other experts.
  PageRanks(
      World& world,
      const PageMeshes& meshes,
      const std::vector<PageSpec>& pages);
  PageRanks(const PageRanks&) = delete;
  PageRanks& operator=(const PageRanks&) = delete;

  /// Among the ranks of PageMeshes::module.
  int rank() const {
    return agreement_.rank();
  }
  int size() const {
    return agreement_.size();
  }
  /// The ranks of a page.
  MeshRanks& of(const PageSpec& page);
  /// The ranks over which sums of a page's shards go: its own; the module's if
  /// other pipeline stages have copies of it.
  MeshRanks& of_sums(const PageSpec& page) {
    return page.tied_name.empty() ? of(page) : of_module();
  }
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
  /// These ranks, for small collectives on CPU tensors (norms, flags).
  Communicator& control() {
    return agreement_.control();
  }

  /// Describes an intent of a rank for errors.
  std::string describe(const RankIntent& intent) const;

  /// A check for waits that only detects failures of other ranks.
  WaitCheck watch_failures() {
    return agreement_.watch_failures();
  }
  /// Checks of waits for other pipeline stages.
  StageWaits& stage_waits() {
    return stage_waits_;
  }
  /// Tells the other ranks that this one has failed, and why: they end with an
  /// error instead of waiting for it.
  void abandon(const std::string& reason) noexcept;
  /// Runs `work`, which may fail on this rank alone, e.g. because of a disk; if
  /// it throws, calls abandon().
  void run_or_abandon(const std::function<void()>& work);

  /// Since the ranks last agreed; the next agreement compares it.
  WrittenValues& written() {
    return written_;
  }
  /// Finds where hashes differ that are not the same on all ranks. Collective;
  /// the same result on all of them.
  ValueDifference find_difference(const ValueHashes& values);
  /// The same of experts, between ranks that have the same; nothing if there is
  /// none. Collective over these ranks, which have agreed to compare.
  std::optional<ValueDifference> find_difference_of_experts(
      const ValueHashes& values);

  /// Sums a small CPU tensor over these ranks, in place. Collective; blocks.
  void sum(const at::Tensor& values);
  /// Takes the maximum of a small CPU tensor over these ranks, in place.
  /// Collective; blocks.
  void max(const at::Tensor& values);

  /// pipeline x tensor, see PageMeshes::model.
  const DeviceMesh& model() const {
    return model_;
  }
  /// All-reduce over the ranks that have the other parts of the model, in an
  /// order that does not depend on the rank; nothing if every rank has all of
  /// it. Collective. Block if `values` are on the CPU; they may be on the
  /// parameters' device.
  void sum_over_model(const at::Tensor& values);
  /// @param doing of this rank, for errors: "inspects the parameters".
  void max_over_parts(
      const at::Tensor& values,
      const std::string& doing = "compares values with the other parts");
  /// The ranks that divide the layers of this one, for small CPU tensors; null:
  /// there are no others.
  Communicator* tensor_control() const;
  enum class Stages { kOne, kAll };
  /// Returns the first text that is not empty, by pipeline stage and
  /// tensor-parallel rank: so an error of ranks with one part of the model is
  /// the same error of all. Collective over the ranks that have the other
  /// parts, or with Stages::kOne those of this pipeline stage; blocks.
  std::string first_over_parts(
      const std::string& text,
      Stages stages = Stages::kAll);

  /// Checks what the ranks that have the other parts of the model state
  /// together. Collective over them; blocks.
  /// @param text the same on all of them.
  /// @throws tessera::Error on all of them if it is not, with all texts.
  void check_same_over_parts(const std::string& text);

  /// Checks that ranks which fill parts of the same lazy parameters do so from
  /// the same seeds. Collective; blocks.
  /// @throws tessera::Error on all ranks, naming two of them and their seeds.
  void check_same_seeds(const torch::nn::Module& module);

  /// Each mesh once, the module's first.
  const std::vector<std::unique_ptr<MeshRanks>>& meshes() const {
    return meshes_;
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
  /// The ranks along an axis of model().
  struct PartRanks {
    std::string axis;
    Communicator* control; ///< for small CPU tensors
    Communicator* on_device; ///< null: the pages are on the CPU
  };

  /// Names of pages and parameters, which outlive the module's.
  struct Names {
    std::vector<std::string> pages;
    std::vector<std::string> parameters;
  };

  void connect(World& world, const DeviceMesh& mesh, c10::Device device);
  /// The communicator of a group of ranks, one for each purpose.
  Communicator* join(
      World& world,
      const std::string& purpose,
      c10::Device device,
      const std::vector<int>& ranks);
  /// A check of waits along an axis of model().
  WaitCheck watch(const PartRanks& ranks, const std::string& doing);
  /// @return the error of the ranks of PageMeshes::module; empty: they have the
  ///   same pages.
  std::string find_other_module(
      const PageMeshes& meshes,
      const std::vector<PageSpec>& pages);
  /// The same of what lazy parameters are filled from, on the ranks that have
  /// the other parts of the model: parts of tensors, other tensors.
  std::string find_other_sources(const std::vector<PageSpec>& pages);
  std::string find_other_parts(
      const PartRanks& ranks,
      const std::vector<PageSpec>& pages);
  std::string find_other_stages(
      const PartRanks& ranks,
      const std::vector<PageSpec>& pages);
  void sum_over_shards(MeshRanks& mesh, const at::Tensor& values);

  Names names_;
  DeviceMesh model_;
  std::string key_; ///< of the communicators in the store
  RankAgreement agreement_;
  StageWaits stage_waits_;
  /// By purpose and ranks.
  std::map<
      std::pair<std::string, std::vector<int>>,
      std::unique_ptr<Communicator>>
      communicators_;
  std::vector<std::unique_ptr<MeshRanks>> meshes_;
  std::vector<PartRanks> parts_;
  WrittenValues written_;
};

/// Makes parameters, buffers and the seeds of lazy parameters those of rank 0.
/// Collective; blocks.
void broadcast_module(
    PageRanks& ranks,
    const torch::nn::Module& module,
    const std::vector<PageSpec>& pages);

} // namespace tessera::sharding
