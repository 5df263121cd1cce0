// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint_reader.h"

#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDamaged =
    "; the checkpoint is damaged: load another one";

/// In ascending order, pieces with common elements are neighbors.
std::tuple<int64_t, int64_t, int64_t> order_of(const TensorSlice& part) {
  const DimRange range =
      part.ranges.empty() ? DimRange{-1, 0, 0} : part.ranges.front();
  return {range.dim, range.begin, part.offset};
}

bool lies_within(const TensorSlice& part, const std::vector<int64_t>& sizes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  if (part.offset < 0 || part.offset > kMost || part.numel < 0 ||
      part.numel > kMost ||
      std::any_of(
          sizes.begin(), sizes.end(), [](int64_t n) { return n < 0; })) {
    return false;
  }
  if (part.ranges.empty()) { // its memory may have gaps
    return true;
  }
  const auto dims = static_cast<int64_t>(sizes.size());
  return std::all_of(
             part.ranges.begin(),
             part.ranges.end(),
             [&](const DimRange& range) {
               return range.dim >= 0 && range.dim < dims && range.begin >= 0 &&
                      range.begin < range.end &&
                      range.end <= sizes[static_cast<size_t>(range.dim)];
             }) &&
         part.offset + part.numel <= sharding::numel_of(sizes, part.ranges);
}

/// Whether the second of two neighbors begins before the first one ends.
bool overlap(const TensorSlice& first, const TensorSlice& second) {
  if (first.ranges == second.ranges) {
    return first.offset + first.numel > second.offset;
  }
  return first.ranges.empty() || second.ranges.empty() ||
         first.ranges.front().dim != second.ranges.front().dim ||
         first.ranges.front().end > second.ranges.front().begin;
}

} // namespace

CheckpointFiles::CheckpointFiles(const fs::path& checkpoint)
    : path_(checkpoint),
      manifest_(read_manifest(checkpoint)),
      files_(manifest_.ranks.size()) {}

std::optional<std::string> CheckpointFiles::problem_of(int r) const {
  const SavedRank& rank = manifest_.ranks[static_cast<size_t>(r)];
  std::error_code code;
  const auto bytes = fs::file_size(path_ / rank.file, code);
  if (code) {
    return formatted("is missing or cannot be read: {}", code.message());
  }
  if (bytes != rank.bytes) {
    return formatted("has {} bytes; the manifest says {}", bytes, rank.bytes);
  }
  return std::nullopt;
}

const runtime::SafetensorsFile& CheckpointFiles::file(int r) {
  auto& opened = files_[static_cast<size_t>(r)];
  if (!opened) {
    const fs::path path = path_ / manifest_.ranks[static_cast<size_t>(r)].file;
    const auto problem = problem_of(r);
    TESSERA_CHECK(
        !problem, "{}: {}{}", path.string(), problem.value_or(""), kDamaged);
    opened = runtime::SafetensorsFile::open(path);
  }
  return *opened;
}

const runtime::SafetensorsEntry& CheckpointFiles::stored(
    int r,
    const SavedTensor& tensor) {
  const runtime::SafetensorsFile& opened = file(r);
  const runtime::SafetensorsEntry& entry = opened.at(tensor.name);
  const auto bytes = static_cast<int64_t>(size_of(entry.dtype));
  TESSERA_CHECK(
      !tensor.part ||
          static_cast<int64_t>(entry.data.size()) == tensor.part->numel * bytes,
      "{}: tensor '{}' has {} bytes, which is not the size of the {} elements in the manifest{}",
      opened.path().string(),
      tensor.name,
      entry.data.size(),
      tensor.part->numel,
      kDamaged);
  return entry;
}

bool CheckpointFiles::is_undamaged(
    const runtime::SafetensorsEntry& stored,
    const SavedTensor& tensor) {
  return runtime::checksum_of(stored.data) == tensor.checksum;
}

const runtime::SafetensorsEntry& CheckpointFiles::verified(
    int r,
    const SavedTensor& tensor) {
  const runtime::SafetensorsEntry& entry = stored(r, tensor);
  if (verified_.insert(&tensor).second) {
    TESSERA_CHECK(
        is_undamaged(entry, tensor),
        "{}: tensor '{}' has the checksum {}; the manifest says {}{}",
        file(r).path().string(),
        tensor.name,
        runtime::checksum_of(entry.data),
        tensor.checksum,
        kDamaged);
  }
  return entry;
}

CheckpointReader::CheckpointReader(const fs::path& checkpoint)
    : files_(checkpoint) {
  for (size_t r = 0; r < manifest().ranks.size(); ++r) {
    for (const SavedTensor& tensor : manifest().ranks[r].tensors) {
      if (tensor.part) {
        slices_[{tensor.parameter, tensor.state}].push_back(
            {static_cast<int>(r), &tensor});
      }
    }
  }
  for (auto& [key, slices] : slices_) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return order_of(*a.tensor->part) < order_of(*b.tensor->part);
    });
    check_slices(key.first, slices);
  }
}

void CheckpointReader::check_slices(
    const std::string& parameter,
    const std::vector<SavedSlice>& slices) const {
  const auto fail = [&](const SavedTensor& tensor, const char* label) {
    TESSERA_FAIL(
        "{}: '{}' of parameter '{}' {}{}",
        path().string(),
        tensor.name,
        parameter,
        label,
        kDamaged);
  };
  const auto saved = manifest().parameters.find(parameter);
  const SavedTensor* before = nullptr;
  for (const SavedSlice& slice : slices) {
    const SavedTensor& tensor = *slice.tensor;
    if (saved == manifest().parameters.end()) {
      fail(tensor, "refers to a parameter that the manifest does not list");
    }
    if (!lies_within(*tensor.part, saved->second.sizes)) {
      fail(tensor, "lies outside the parameter");
    }
    if (before != nullptr && overlap(*before->part, *tensor.part)) {
      fail(tensor, "overlaps another piece");
    }
    before = &tensor;
  }
}

std::vector<std::string> CheckpointReader::states_of(
    const std::string& parameter) const {
  std::vector<std::string> states;
  for (auto it = slices_.lower_bound({parameter, ""});
       it != slices_.end() && it->first.first == parameter;
       ++it) {
    states.push_back(it->first.second);
  }
  return states;
}

template <typename Body>
void CheckpointReader::for_each_overlap(
    const std::string& parameter,
    const std::string& state,
    const TensorSlice& part,
    const Body& body) {
  const auto found = slices_.find({parameter, state});
  TESSERA_CHECK(
      found != slices_.end(),
      "{}: has no '{}' for parameter '{}{}",
      path().string(),
      state,
      parameter,
      state == kMasterState
          ? "'; it is a checkpoint of a different model."
          : "'; it was saved with a different optimizer for this parameter. Load with the same optimizer.");
  const std::vector<int64_t>& sizes = manifest().parameters.at(parameter).sizes;
  int64_t numel = 0;
  for (const SavedSlice& slice : found->second) {
    for (const sharding::CommonBlock& common :
         sharding::intersect(sizes, part, *slice.tensor->part)) {
      body(files_.verified(slice.rank, *slice.tensor), common);
      numel += common.numel();
    }
  }
  TESSERA_CHECK(
      numel == part.numel,
      "{}: {} of {} elements of '{}' of parameter '{}' that this rank needs are not in any file{}",
      path().string(),
      part.numel - numel,
      part.numel,
      state,
      parameter,
      kDamaged);
}

void CheckpointReader::check_elements(
    const std::string& parameter,
    const std::string& state,
    const TensorSlice& part) {
  for_each_overlap(
      parameter,
      state,
      part,
      [](const runtime::SafetensorsEntry&, const sharding::CommonBlock&) {});
}

void CheckpointReader::read_elements(
    const std::string& parameter,
    const std::string& state,
    const TensorSlice& part,
    const at::Tensor& values) {
  for_each_overlap(
      parameter,
      state,
      part,
      [&](const runtime::SafetensorsEntry& entry,
          const sharding::CommonBlock& common) {
        sharding::read_block(
            {entry.name, entry.dtype, entry.data}, common, values);
      });
}

const SavedTensor* CheckpointReader::find(int r, const std::string& name)
    const {
  for (const auto& tensor : manifest().ranks[static_cast<size_t>(r)].tensors) {
    if (tensor.name == name) {
      return &tensor;
    }
  }
  return nullptr;
}

std::optional<int> CheckpointReader::rank_with(int r, const std::string& name)
    const {
  for (int i = 0; i < world_size(); ++i) {
    const int rank = (r + i) % world_size();
    if (find(rank, name) != nullptr) {
      return rank;
    }
  }
  return std::nullopt;
}

at::Tensor CheckpointReader::tensor(int r, const std::string& name) {
  const SavedTensor* saved = find(r, name);
  TESSERA_CHECK(
      saved != nullptr,
      "{}: has no '{}' for rank {}; it was saved with a different model or optimizer.",
      path().string(),
      name,
      r);
  return sharding::loaded_tensor(files_.verified(r, *saved));
}

std::map<std::string, at::Tensor> CheckpointReader::tensors(
    int r,
    const std::string& prefix) {
  std::map<std::string, at::Tensor> found;
  for (const auto& saved : manifest().ranks[static_cast<size_t>(r)].tensors) {
    if (saved.name.rfind(prefix, 0) == 0) {
      found[saved.name.substr(prefix.size())] =
          sharding::loaded_tensor(files_.verified(r, saved));
    }
  }
  return found;
}

} // namespace tessera::engine
