// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeviceMesh` arranges the ranks of a job as a grid with named axes.

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct MeshAxis {
  std::string name;
  /// Number of ranks along the axis, at least 1.
  int size = 1;
};

/// The ranks of a job in row-major order: the last axis varies fastest, so its
/// groups are neighboring ranks. With 8 ranks as pipeline 2 x data 2 x tensor
/// 2, the tensor groups are [0,1] [2,3] [4,5] [6,7], the data groups are [0,2]
/// [1,3] [4,6] [5,7], and ranks 0 to 3 are the first pipeline stage.
///
/// Plain arithmetic without communication. Immutable. Every function throws
/// Error for a rank or an axis that the mesh does not have.
class DeviceMesh {
 public:
  /// @param axes outermost first.
  /// @throws Error when there are no axes, a name is empty or used twice, a
  ///   size is below 1, or the product of the sizes is not `world_size`; in the
  ///   last case the message suggests sizes that fit.
  DeviceMesh(std::vector<MeshAxis> axes, int world_size);

  int world_size() const {
    return world_size_;
  }
  const std::vector<MeshAxis>& axes() const {
    return axes_;
  }
  int axis_size(std::string_view axis) const;

  /// Coordinate of `rank` along `axis`, from 0.
  int coordinate(int rank, std::string_view axis) const;

  /// Ranks that differ from `rank` on `axis` only, including `rank`, ordered by
  /// coordinate.
  std::vector<int> group_ranks(int rank, std::string_view axis) const;

  /// All groups of an axis, ordered by their first rank. Every rank is in
  /// exactly one.
  std::vector<std::vector<int>> groups(std::string_view axis) const;

  /// Treats several axes, e.g. data and tensor, as one: the ranks that differ
  /// from `rank` on these axes only, ascending. The order of `axes` does not
  /// matter.
  std::vector<int> flat_group_ranks(
      int rank,
      const std::vector<std::string>& axes) const;
  std::vector<std::vector<int>> flat_groups(
      const std::vector<std::string>& axes) const;

  /// "pipeline 2 x data 2 x tensor 2"
  std::string describe() const;

 private:
  int index_of(std::string_view axis) const;
  int coordinate(int rank, int axis_index) const;
  void check_rank(int rank) const;

  std::vector<MeshAxis> axes_;
  // Distance in ranks between neighbors along each axis.
  std::vector<int> strides_;
  int world_size_;
};

} // namespace tessera
