// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint_reader.h"

#include "tessera/engine/checkpoint/tensor_io.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDamaged =
    "; the checkpoint is damaged: load another one";

/// The runs of the first stretch, which the entry contains, one after the
/// other.
void copy_runs(
    const runtime::SafetensorsEntry& entry,
    const CommonRuns& runs,
    std::byte* out) {
  const auto item = static_cast<int64_t>(size_of(entry.dtype));
  const std::byte* from = entry.data.data() + runs.a * item;
  const bool is_one = runs.runs == 1 || runs.a_pitch == runs.length;
  const int64_t copies = is_one ? 1 : runs.runs;
  const int64_t bytes = item * runs.length * (is_one ? runs.runs : 1);
  for (int64_t i = 0; i < copies; ++i) {
    std::memcpy(
        out + i * bytes,
        from + i * runs.a_pitch * item,
        static_cast<size_t>(bytes));
  }
}

/// In ascending order, pieces with common elements are neighbors.
std::tuple<int64_t, int64_t, int64_t> place_of(const SavedTensor& piece) {
  const DimPart part = piece.part.value_or(DimPart{-1, 0, 0});
  return {part.dim, part.begin, *piece.offset};
}

bool lies_within(const SavedTensor& piece, const std::vector<int64_t>& sizes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  if (*piece.offset < 0 || *piece.offset > kMost || piece.numel < 0 ||
      piece.numel > kMost ||
      std::any_of(
          sizes.begin(), sizes.end(), [](int64_t n) { return n < 0; })) {
    return false;
  }
  if (!piece.part) { // whose memory may have gaps
    return true;
  }
  const auto dims = static_cast<int64_t>(sizes.size());
  const DimPart& part = *piece.part;
  return part.dim >= 0 && part.dim < dims && part.begin >= 0 &&
         part.begin < part.end &&
         part.end <= sizes[static_cast<size_t>(part.dim)] &&
         *piece.offset + piece.numel <= numel_of(sizes, part);
}

/// Whether the second of two neighbors begins before the first one ends.
bool overlap(const SavedTensor& first, const SavedTensor& second) {
  if (first.part == second.part) {
    return *first.offset + first.numel > *second.offset;
  }
  return !first.part || !second.part || first.part->dim != second.part->dim ||
         first.part->end > second.part->begin;
}

} // namespace

CheckpointReader::CheckpointReader(const fs::path& checkpoint)
    : path_(checkpoint),
      manifest_(read_manifest(checkpoint)),
      files_(manifest_.ranks.size()) {
  for (size_t r = 0; r < manifest_.ranks.size(); ++r) {
    for (const SavedTensor& tensor : manifest_.ranks[r].tensors) {
      if (tensor.offset) {
        pieces_[{tensor.parameter, tensor.state}].push_back(
            {static_cast<int>(r), &tensor});
      }
    }
  }
  for (auto& [key, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
      return place_of(*a.tensor) < place_of(*b.tensor);
    });
    check_pieces(key.first, pieces);
  }
}

void CheckpointReader::check_pieces(
    const std::string& parameter,
    const std::vector<Piece>& pieces) const {
  const auto fail = [&](const SavedTensor& tensor, const char* what) {
    TESSERA_FAIL(
        "{}: '{}' of parameter '{}' {}{}",
        path_.string(),
        tensor.name,
        parameter,
        what,
        kDamaged);
  };
  const auto saved = manifest_.parameters.find(parameter);
  const SavedTensor* before = nullptr;
  for (const Piece& piece : pieces) {
    const SavedTensor& tensor = *piece.tensor;
    if (saved == manifest_.parameters.end()) {
      fail(tensor, "refers to a parameter that the manifest does not list");
    }
    if (!lies_within(tensor, saved->second.sizes)) {
      fail(tensor, "lies outside the parameter");
    }
    if (before != nullptr && overlap(*before, tensor)) {
      fail(tensor, "overlaps another piece");
    }
    before = &tensor;
  }
}

runtime::SafetensorsFile& CheckpointReader::file(int r) {
  auto& opened = files_[static_cast<size_t>(r)];
  if (!opened) {
    const SavedRank& rank = manifest_.ranks[static_cast<size_t>(r)];
    const fs::path path = path_ / rank.file;
    std::error_code code;
    const auto bytes = fs::file_size(path, code);
    TESSERA_CHECK(
        !code,
        "{}: cannot be read: {}{}",
        path.string(),
        code.message(),
        kDamaged);
    TESSERA_CHECK(
        bytes == rank.bytes,
        "{}: has {} bytes; the manifest says {}{}",
        path.string(),
        bytes,
        rank.bytes,
        kDamaged);
    opened = runtime::SafetensorsFile::open(path);
  }
  return *opened;
}

const runtime::SafetensorsEntry& CheckpointReader::checked_entry(
    int r,
    const SavedTensor& tensor) {
  const runtime::SafetensorsFile& opened = file(r);
  const runtime::SafetensorsEntry& entry = opened.at(tensor.name);
  if (checked_.insert(&tensor).second) {
    const std::string found = runtime::checksum_of(entry.data);
    TESSERA_CHECK(
        found == tensor.checksum,
        "{}: tensor '{}' has the checksum {}; the manifest says {}{}",
        opened.path().string(),
        tensor.name,
        found,
        tensor.checksum,
        kDamaged);
    const auto bytes = static_cast<int64_t>(size_of(entry.dtype));
    TESSERA_CHECK(
        !tensor.offset ||
            static_cast<int64_t>(entry.data.size()) == tensor.numel * bytes,
        "{}: tensor '{}' has {} bytes, which is not the size of the {} elements in the manifest{}",
        opened.path().string(),
        tensor.name,
        entry.data.size(),
        tensor.numel,
        kDamaged);
  }
  return entry;
}

template <typename Body>
void CheckpointReader::for_each_overlap(
    const std::string& parameter,
    const std::string& state,
    const PartStretch& stretch,
    const Body& body) {
  const auto found = pieces_.find({parameter, state});
  TESSERA_CHECK(
      found != pieces_.end(),
      "{}: has no '{}' for parameter '{}{}",
      path_.string(),
      state,
      parameter,
      state == kMasterState
          ? "'; it is a checkpoint of a different model."
          : "'; it was saved with a different optimizer for this parameter. Load with the same optimizer.");
  const std::vector<int64_t>& sizes = manifest_.parameters.at(parameter).sizes;
  int64_t numel = 0;
  for (const Piece& piece : found->second) {
    const auto common = common_runs(sizes, piece.tensor->stretch(), stretch);
    for (const CommonRuns& runs : common) {
      body(checked_entry(piece.rank, *piece.tensor), runs);
      numel += runs.runs * runs.length;
    }
  }
  TESSERA_CHECK(
      numel == stretch.numel,
      "{}: {} of {} elements of '{}' of parameter '{}' that this rank needs are not in any file{}",
      path_.string(),
      stretch.numel - numel,
      stretch.numel,
      state,
      parameter,
      kDamaged);
}

void CheckpointReader::check_elements(
    const std::string& parameter,
    const std::string& state,
    const PartStretch& stretch) {
  for_each_overlap(
      parameter,
      state,
      stretch,
      [](const runtime::SafetensorsEntry&, const CommonRuns&) {});
}

void CheckpointReader::read_elements(
    const std::string& parameter,
    const std::string& state,
    const PartStretch& stretch,
    const at::Tensor& values) {
  for_each_overlap(
      parameter,
      state,
      stretch,
      [&](const runtime::SafetensorsEntry& entry, const CommonRuns& runs) {
        const at::Tensor read =
            at::empty({runs.runs, runs.length}, loaded_dtype_of(entry.dtype));
        copy_runs(entry, runs, static_cast<std::byte*>(read.data_ptr()));
        values
            .as_strided(
                {runs.runs, runs.length},
                {runs.b_pitch, 1},
                values.storage_offset() + runs.b)
            .copy_(read);
      });
}

const SavedTensor* CheckpointReader::find(int r, const std::string& name)
    const {
  for (const auto& tensor : manifest_.ranks[static_cast<size_t>(r)].tensors) {
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
      path_.string(),
      name,
      r);
  return loaded_tensor(checked_entry(r, *saved));
}

std::map<std::string, at::Tensor> CheckpointReader::tensors(
    int r,
    const std::string& prefix) {
  std::map<std::string, at::Tensor> found;
  for (const auto& saved : manifest_.ranks[static_cast<size_t>(r)].tensors) {
    if (saved.name.rfind(prefix, 0) == 0) {
      found[saved.name.substr(prefix.size())] =
          loaded_tensor(checked_entry(r, saved));
    }
  }
  return found;
}

} // namespace tessera::engine
