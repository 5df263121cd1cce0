// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeviceMesh` arranges ranks as a grid with named axes.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct MeshAxis {
  std::string name;
  /// Number of ranks along the axis, at least 1.
  int size = 1;

  bool operator==(const MeshAxis&) const = default;
};

/// Ranks in row-major order: the last axis varies fastest, so its groups are
/// neighboring ranks. With 8 ranks as pipeline 2 x data 2 x tensor 2, the
/// tensor groups are [0,1] [2,3] [4,5] [6,7], the data groups are [0,2] [1,3]
/// [4,6] [5,7], and ranks 0 to 3 are the first pipeline stage.
///
/// A mesh is seen by one of its ranks, whose place it tells: slice() are the
/// ranks that differ from it on some of the axes only. A slice is a mesh of the
/// same ranks of the job, and may be divided otherwise by with_axes().
///
/// Plain arithmetic without communication. Immutable. Every function throws
/// Error for a rank or an axis that the mesh does not have.
class DeviceMesh {
 public:
  /// All ranks of a job.
  /// @param axes outermost first.
  /// @param rank that sees it.
  /// @throws Error when there are no axes, a name is empty or used twice, a
  ///   size is below 1, or the product of the sizes is not `world_size`; in the
  ///   last case the message suggests sizes that fit.
  DeviceMesh(std::vector<MeshAxis> axes, int world_size, int rank = 0);
  /// Some ranks of a job.
  /// @param ranks in row-major order, each once.
  DeviceMesh(std::vector<MeshAxis> axes, std::vector<int> ranks, int rank);

  const std::vector<MeshAxis>& axes() const {
    return axes_;
  }
  /// In row-major order, numbered as in the job.
  const std::vector<int>& ranks() const& {
    return ranks_;
  }
  std::vector<int> ranks() && { // of a slice that nobody keeps
    return std::move(ranks_);
  }
  int size() const {
    return static_cast<int>(ranks_.size());
  }
  int size(std::string_view axis) const;
  bool has(std::string_view axis) const;

  /// The rank that sees it.
  int rank() const {
    return rank_;
  }
  DeviceMesh seen_by(int rank) const;
  /// The place of `rank` in ranks(): its rank in a communicator of all of them.
  int position_of(int rank) const;
  /// Its place along `axis`, from 0.
  int index(std::string_view axis) const;

  /// The ranks that differ from rank() on these axes only, with these axes, in
  /// the order that they have here.
  DeviceMesh slice(const std::vector<std::string>& axes) const;
  /// All such slices, each seen by its first rank and ordered by it. Every rank
  /// is in exactly one.
  std::vector<DeviceMesh> slices(const std::vector<std::string>& axes) const;
  /// The same ranks in the same order, divided otherwise.
  DeviceMesh with_axes(std::vector<MeshAxis> axes) const;

  /// "pipeline 2 x data 2 x tensor 2"
  std::string describe() const;

  bool operator==(const DeviceMesh&) const = default;

 private:
  int index_of(std::string_view axis) const;
  int coordinate(int axis_index) const;

  std::vector<MeshAxis> axes_;
  // Distance in places between neighbors along each axis.
  std::vector<int> strides_;
  std::vector<int> ranks_;
  int rank_;
  int position_ = 0; ///< of rank_ in ranks_
};

} // namespace tessera
