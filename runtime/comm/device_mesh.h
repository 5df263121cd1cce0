// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rank works with which: the ranks of a job as a grid with named axes.

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct MeshAxis {
  std::string name;
  /// Ranks along the axis, 1 or more.
  int size = 1;
};

/// The ranks of a job laid out row-major: the last axis varies fastest, so its
/// groups are neighbouring ranks. With 8 ranks as pipeline 2 x data 2 x tensor
/// 2, the tensor groups are [0,1] [2,3] [4,5] [6,7], the data groups [0,2]
/// [1,3] [4,6] [5,7], and ranks 0 to 3 are the first pipeline stage.
///
/// Plain arithmetic without communication. Immutable. Every function throws
/// Error for a rank or an axis that the mesh does not have.
class DeviceMesh {
 public:
  /// @param axes outermost first.
  /// @throws Error when there is no axis, a name is empty or taken twice, a
  ///     size is below 1, or the sizes do not multiply to `world_size`; the
  ///     last one names sizes that would.
  DeviceMesh(std::vector<MeshAxis> axes, int world_size);

  int world_size() const {
    return world_size_;
  }
  const std::vector<MeshAxis>& axes() const {
    return axes_;
  }
  int axis_size(std::string_view axis) const;

  /// Where `rank` stands on `axis`, from 0.
  int coordinate(int rank, std::string_view axis) const;

  /// The ranks that differ from `rank` on `axis` only, `rank` among them, by
  /// coordinate.
  std::vector<int> group_ranks(int rank, std::string_view axis) const;

  /// All groups of an axis, by their first rank. Every rank is in one of them.
  std::vector<std::vector<int>> groups(std::string_view axis) const;

  /// Several axes taken as one, say data and tensor: the ranks that differ from
  /// `rank` on these axes only, ascending, in whatever order the axes are
  /// named.
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
  // Distance in ranks between neighbours along each axis.
  std::vector<int> strides_;
  int world_size_;
};

} // namespace tessera
