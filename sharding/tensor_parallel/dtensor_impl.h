// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DTensorImpl` is the wrapper of a rank's part ([Note: DTensors]).

#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// A dimension and how the ranks divide it.
struct DividedDim {
  int64_t dim = 0; ///< counted from the front
  DimSplit split;
};

class DTensorImpl : public c10::TensorImpl {
 public:
  /// @param divided nothing: every rank has the whole, in memory that the
  ///   tensor of which it would be a view does not share.
  DTensorImpl(
      at::Tensor local,
      std::optional<DividedDim> divided,
      std::shared_ptr<const TensorParallel> tp);

  const at::Tensor& local() const {
    return local_;
  }
  /// @param local the same part with another history in autograd.
  void set_local(at::Tensor local) {
    local_ = std::move(local);
  }
  const std::optional<DividedDim>& divided() const {
    return divided_;
  }
  const std::shared_ptr<const TensorParallel>& tp() const {
    return tp_;
  }
  Communicator& group() const {
    return *tp_->group;
  }
  /// Dimension of the division, counted from the end: negative.
  int64_t dim_from_end() const {
    return divided_->dim - dim();
  }

  /// Whether writing into it would not reach the tensor of which the code
  /// believes it to be a view.
  bool is_copy() const {
    return is_copy_;
  }
  void set_copy() {
    is_copy_ = true;
  }

  /// Node of autograd that leads from the wrapper to its part, if any.
  const torch::autograd::Node* bridge() const {
    return bridge_;
  }
  void set_bridge(const torch::autograd::Node* bridge) {
    bridge_ = bridge;
  }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  /// @throws tessera::Error always: set_data() is not supported.
  void shallow_copy_from(
      const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

 protected:
  const char* tensorimpl_type_name() const override {
    return "DTensorImpl";
  }

 private:
  c10::intrusive_ptr<c10::TensorImpl> detached(bool allow_change) const;

  at::Tensor local_;
  std::optional<DividedDim> divided_;
  std::shared_ptr<const TensorParallel> tp_;
  const torch::autograd::Node* bridge_ = nullptr;
  bool is_copy_ = false;
};

/// How a DTensor is divided, without its part. Of an ordinary tensor: nothing.
struct Layout {
  Layout() = default;
  explicit Layout(const at::Tensor& x);

  std::optional<DividedDim> divided;
  int64_t dims = 0;
  std::shared_ptr<const TensorParallel> tp; ///< null: an ordinary tensor
};

/// Makes the tensor of which `layout` was taken out of a part.
at::Tensor with_layout(const at::Tensor& local, const Layout& layout);

/// Returns null for an ordinary or undefined tensor.
DTensorImpl* dtensor(const at::Tensor& tensor);

/// Returns null unless each rank has a part of `tensor`.
DTensorImpl* divided_dtensor(const at::Tensor& tensor);

/// Wraps this rank's part.
at::Tensor make_dtensor(
    const at::Tensor& local,
    std::optional<DividedDim> divided,
    const std::shared_ptr<const TensorParallel>& tp);

/// Wraps this rank's part of a new tensor that is divided as `like`.
/// @param dim of `local`, also counted from the end.
at::Tensor make_dtensor_like(
    const at::Tensor& local,
    int64_t dim,
    const DTensorImpl& like);

/// The division of dimension `dim` of a tensor of which every rank has as much
/// as `local` has.
DividedDim even_parts(const at::Tensor& local, int64_t dim, int ranks);

/// The part behind a wrapper, with its history in autograd.
at::Tensor local_of(const at::Tensor& x);

/// Leads autograd from the wrapper to the part as it is now, after an operator
/// has changed it in place.
void connect(const at::Tensor& x);

/// Returns a tensor that is whole on all ranks and meets a part: its gradient
/// is summed over the ranks. `full` itself if it needs no gradient.
at::Tensor shared(const at::Tensor& full, Communicator& group);

/// Returns what a rank needs of an operand that is broadcast together with a
/// tensor which is divided as `split` in dimension `from_end`: the same part,
/// or, where the operand has one element there, all of it.
at::Tensor operand(
    const at::Tensor& x,
    int64_t from_end,
    const DimSplit& split,
    Communicator& group);

/// Whether both divide a dimension into the same parts.
bool same_parts(const DimSplit& a, const DimSplit& b);

} // namespace tessera::sharding
