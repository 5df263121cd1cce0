// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelTensors` lists the tensors of the model that all ranks have together,
// with the part of each that every rank holds, and reads their whole values.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::sharding {

struct Page;
class Pager;

} // namespace tessera::sharding

namespace tessera {

/// The part of a tensor that a rank holds.
struct RankSlice {
  int rank = 0; ///< in ModelTensors::ranks()
  TensorSlice part;
};

/// A parameter or a registered buffer of the whole model.
struct ModelTensor {
  /// As on all ranks, without axes; its dtype is that before wrap().
  TensorSpec spec;
  std::vector<int64_t> strides; ///< of the whole tensor
  bool is_buffer = false;
  /// Number of its page on the ranks that hold it; -1: it is not paged.
  int page = -1;
  /// Every element once, by ascending rank: what the first pipeline stage that
  /// has the tensor holds, of several copies the first.
  std::vector<RankSlice> parts;

  const std::string& name() const {
    return spec.name();
  }
};

/// All tensors of all pipeline stages and experts, and access to their values.
/// Parameters have the names that they have in the whole model; tensors of
/// several ranks with the same name are the same. Functions marked collective
/// are called by all ranks() in the same order.
class ModelTensors {
 public:
  /// Of a wrapped module. Collective; blocks.
  /// @param files all ranks of the job, for tensors on the CPU. They and the
  ///   module must outlive this object.
  /// @throws tessera::Error on every rank if ranks disagree about a tensor.
  ModelTensors(
      sharding::Pager& pager,
      Communicator& files,
      const torch::nn::Module& module);
  /// Of a module that is not wrapped; the ranks are those that divide its
  /// layers, or this one. Collective; blocks.
  /// @throws tessera::Error if the module is wrapped.
  explicit ModelTensors(const torch::nn::Module& module);

  Communicator& ranks() const {
    return *ranks_;
  }
  /// By pipeline stage and page; the same on every rank.
  const std::vector<ModelTensor>& tensors() const {
    return tensors_;
  }
  /// @param name any of a tied parameter's.
  /// @return null if no rank has a tensor of that name.
  const ModelTensor* find(const std::string& name) const;
  /// The names of all parameters, including all names of tied ones.
  std::vector<std::string> parameter_names() const;
  /// The spec of a parameter or buffer of the module, as the tensor-parallel
  /// ranks divide it.
  TensorSpec spec_of(const at::Tensor& tensor) const;

  /// Returns whether this rank's part is one of ModelTensor::parts.
  bool holds(const ModelTensor& tensor) const;
  /// Returns whether it is the first of them.
  bool is_first_holder(const ModelTensor& tensor) const;

  /// Calls `visit` on rank 0 with every tensor and its value (on the CPU,
  /// contiguous, valid during the call); with master weights, the value is
  /// theirs; of a lazy tensor, what it will be filled with. Rank 0 holds one
  /// whole tensor, and a second if what it gets is not in the tensor's order;
  /// every rank holds its shard of a page if that does not rest in memory of
  /// its own device. Collective; blocks.
  /// @throws tessera::Error on every rank if `visit` throws or values cannot be
  ///   read.
  /// @param wants selects the tensors, the same ones on every rank; empty: all.
  void for_each(
      const std::function<void(const ModelTensor&, const at::Tensor&)>& visit,
      const std::function<bool(const ModelTensor&)>& wants = {});

  /// Calls `work`; if it throws on some rank, every rank throws. Collective.
  /// @param label begins the message on the ranks where `work` did not throw.
  void on_all_ranks(
      const std::string& label,
      const std::function<void()>& work);

 private:
  /// A tensor of this rank.
  struct Local {
    at::Tensor tensor;
    sharding::Page* page = nullptr; ///< null: it is not paged
    size_t position = 0; ///< in its page
  };
  /// The shard of the page that was read last.
  struct ReadPage {
    const sharding::Page* page = nullptr;
    at::Tensor values;
  };

  /// Tensor-parallel ranks.
  int tensor_rank() const;
  int tensor_size() const;
  WaitCheck watch() const;

  void take_specs(const torch::nn::Module& module);
  void join(const torch::nn::Module& module);
  /// What this rank lists: its tensors, each with its part alone.
  std::vector<ModelTensor> local_tensors(const torch::nn::Module& module);
  void add_paged(std::vector<ModelTensor>& local);
  void add_unpaged(
      const torch::nn::Module& module,
      std::vector<ModelTensor>& local);
  void add(ModelTensor listed, int rank);
  void sort();
  void check_complete() const;
  /// This rank's among ModelTensor::parts; null: there is none.
  const RankSlice* local_part(const ModelTensor& tensor) const;
  /// The elements of this rank's part, in memory of the CPU.
  at::Tensor local_values(const ModelTensor& tensor, const TensorSlice& part);
  /// @param local the elements of this rank's part; undefined: it holds none.
  /// @return undefined on all ranks but 0.
  at::Tensor full_value(const ModelTensor& tensor, const at::Tensor& local);

  std::unique_ptr<Communicator> alone_; ///< of a module that no rank shares
  sharding::Pager* pager_ = nullptr; ///< null: the module is not wrapped
  Communicator* ranks_;
  TensorSpecs specs_;
  std::vector<ModelTensor> tensors_;
  std::map<std::string, size_t> index_; ///< by every name
  std::map<std::string, Local> local_; ///< by first name
  ReadPage read_;
};

} // namespace tessera
