// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/device_mesh.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace tessera {

namespace {

std::string describe_axes(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) {
    text += (text.empty() ? "" : " x ") + axis.name + " " +
            std::to_string(axis.size);
  }
  return text;
}

/// Finds sizes for the axes whose product is the world size.
class FactorisationSearch {
 public:
  /// The sizes nearest to the given ones: those that change the fewest axes, a
  /// handful at most.
  static std::vector<std::vector<MeshAxis>> near(
      const std::vector<MeshAxis>& axes,
      int world_size) {
    FactorisationSearch search(axes);
    for (std::size_t changes = 1; search.found_.empty(); ++changes) {
      search.extend(0, world_size, changes);
    }
    return search.found_;
  }

 private:
  static constexpr std::size_t kMaxFound = 4;

  explicit FactorisationSearch(const std::vector<MeshAxis>& axes)
      : wanted_(axes), current_(axes) {}

  /// Chooses the size of axis `index` and of all later ones, whose product must
  /// be `rest`. Changing every axis always succeeds.
  void extend(std::size_t index, int rest, std::size_t changes_left) {
    if (found_.size() == kMaxFound) {
      return;
    }
    if (index == wanted_.size()) {
      if (rest == 1) {
        found_.push_back(current_);
      }
      return;
    }
    const int wanted = wanted_[index].size;
    if (rest % wanted == 0) {
      current_[index].size = wanted;
      extend(index + 1, rest / wanted, changes_left);
    }
    for (int size = 1; changes_left > 0 && size <= rest; ++size) {
      if (size != wanted && rest % size == 0) {
        current_[index].size = size;
        extend(index + 1, rest / size, changes_left - 1);
      }
    }
  }

  std::vector<MeshAxis> wanted_;
  std::vector<MeshAxis> current_;
  std::vector<std::vector<MeshAxis>> found_;
};

void check_axes(const std::vector<MeshAxis>& axes) {
  TESSERA_CHECK(!axes.empty(), "a mesh needs at least one axis, such as data");
  std::set<std::string_view> names;
  for (const MeshAxis& axis : axes) {
    TESSERA_CHECK(
        !axis.name.empty(),
        "an axis of the mesh has no name; name each, such as data or tensor");
    TESSERA_CHECK(
        names.insert(axis.name).second,
        "the mesh has two axes named '{}'; give each its own name",
        axis.name);
    TESSERA_CHECK(
        axis.size >= 1,
        "mesh axis '{}' has size {}; it must be at least 1",
        axis.name,
        axis.size);
  }
}

void check_product(const std::vector<MeshAxis>& axes, int world_size) {
  std::int64_t product = 1;
  for (const MeshAxis& axis : axes) {
    product *= axis.size;
    // From here on it can only be too large, and may overflow.
    if (product > std::numeric_limits<int>::max()) {
      break;
    }
  }
  if (product == world_size) {
    return;
  }
  std::string fits;
  for (const auto& candidate : FactorisationSearch::near(axes, world_size)) {
    fits += (fits.empty() ? "" : ", or ") + describe_axes(candidate);
  }
  TESSERA_FAIL(
      "the mesh {} does not fit the {} of the job{}",
      describe_axes(axes),
      runtime::count_text(world_size, "rank"),
      world_size == 1
          ? formatted(
                ". This process is the only rank: start more with `tessera launch --nproc {} -- ...`, or leave the sizes out",
                product)
          : "; sizes that would fit: " + fits +
                " (if the model has enough heads and layers)");
}

std::vector<int> first_ranks(int world_size) {
  TESSERA_CHECK(
      world_size >= 1,
      "the world has {} ranks; it must have at least 1",
      world_size);
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

} // namespace

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, int world_size, int rank)
    : DeviceMesh(std::move(axes), first_ranks(world_size), rank) {}

DeviceMesh::DeviceMesh(
    std::vector<MeshAxis> axes,
    std::vector<int> ranks,
    int rank)
    : axes_(std::move(axes)),
      strides_(axes_.size()),
      ranks_(std::move(ranks)),
      rank_(rank) {
  check_axes(axes_);
  check_product(axes_, size());
  int stride = 1;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = stride;
    stride *= axes_[i].size;
  }
  position_ = position_of(rank);
}

int DeviceMesh::size(std::string_view axis) const {
  return axes_[index_of(axis)].size;
}

bool DeviceMesh::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const MeshAxis& local) {
    return local.name == axis;
  });
}

DeviceMesh DeviceMesh::seen_by(int rank) const {
  return {axes_, ranks_, rank};
}

int DeviceMesh::position_of(int rank) const {
  const auto position = std::find(ranks_.begin(), ranks_.end(), rank);
  TESSERA_CHECK(
      position != ranks_.end(),
      "rank {} is not in the mesh; its ranks are {} to {}",
      rank,
      ranks_.front(),
      ranks_.back());
  return static_cast<int>(position - ranks_.begin());
}

int DeviceMesh::index(std::string_view axis) const {
  return coordinate(index_of(axis));
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& axes) const {
  std::set<int> free_axes;
  for (const std::string& axis : axes) {
    free_axes.insert(index_of(axis));
  }
  std::vector<MeshAxis> kept;
  int first = position_;
  for (const int axis : free_axes) {
    kept.push_back(axes_[axis]);
    first -= coordinate(axis) * strides_[axis];
  }
  // Outermost axis first: row-major.
  std::vector<int> positions{first};
  for (const int axis : free_axes) {
    std::vector<int> spread;
    spread.reserve(positions.size() * axes_[axis].size);
    for (const int base : positions) {
      for (int i = 0; i < axes_[axis].size; ++i) {
        spread.push_back(base + i * strides_[axis]);
      }
    }
    positions = std::move(spread);
  }
  for (int& position : positions) {
    position = ranks_[position];
  }
  return {std::move(kept), std::move(positions), rank_};
}

std::vector<DeviceMesh> DeviceMesh::slices(
    const std::vector<std::string>& axes) const {
  std::vector<DeviceMesh> all;
  DeviceMesh seen = *this;
  for (seen.position_ = 0; seen.position_ < size(); ++seen.position_) {
    seen.rank_ = ranks_[seen.position_];
    if (std::all_of(axes.begin(), axes.end(), [&](const std::string& axis) {
          return seen.index(axis) == 0;
        })) {
      all.push_back(seen.slice(axes));
    }
  }
  return all;
}

DeviceMesh DeviceMesh::with_axes(std::vector<MeshAxis> axes) const {
  return {std::move(axes), ranks_, rank_};
}

std::string DeviceMesh::describe() const {
  return describe_axes(axes_);
}

int DeviceMesh::index_of(std::string_view axis) const {
  const auto found =
      std::find_if(axes_.begin(), axes_.end(), [&](const MeshAxis& local) {
        return local.name == axis;
      });
  TESSERA_CHECK(
      found != axes_.end(),
      "the mesh has no axis '{}'; its axes are {}",
      axis,
      describe());
  return static_cast<int>(found - axes_.begin());
}

int DeviceMesh::coordinate(int axis_index) const {
  return position_ / strides_[axis_index] % axes_[axis_index].size;
}

} // namespace tessera
