// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint_reader.h"

#include "tessera/engine/checkpoint/tensor_io.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDamaged =
    "; the checkpoint is damaged: load another one";

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
      return *a.tensor->offset < *b.tensor->offset;
    });
  }
}

SafetensorsFile& CheckpointReader::file(int r) {
  auto& opened = files_[static_cast<size_t>(r)];
  if (!opened) {
    const SavedRank& rank = manifest_.ranks[static_cast<size_t>(r)];
    const fs::path path = path_ / rank.file;
    std::error_code code;
    const auto bytes = fs::file_size(path, code);
    TESSERA_CHECK(
        !code, path.string(), ": cannot be read: ", code.message(), kDamaged);
    TESSERA_CHECK(
        bytes == rank.bytes,
        path.string(),
        ": has ",
        bytes,
        " bytes; the manifest says ",
        rank.bytes,
        kDamaged);
    opened = SafetensorsFile::open(path);
  }
  return *opened;
}

const SafetensorsEntry& CheckpointReader::checked_entry(
    int r,
    const SavedTensor& tensor) {
  const SafetensorsFile& opened = file(r);
  const SafetensorsEntry& entry = opened.at(tensor.name);
  if (checked_.insert(&tensor).second) {
    const std::string found = checksum_of(entry.data);
    TESSERA_CHECK(
        found == tensor.checksum,
        opened.path().string(),
        ": tensor '",
        tensor.name,
        "' has the checksum ",
        found,
        "; the manifest says ",
        tensor.checksum,
        kDamaged);
    const auto bytes = static_cast<int64_t>(size_of(entry.dtype));
    TESSERA_CHECK(
        !tensor.offset ||
            static_cast<int64_t>(entry.data.size()) == tensor.numel * bytes,
        opened.path().string(),
        ": tensor '",
        tensor.name,
        "' has ",
        entry.data.size(),
        " bytes, not the ",
        tensor.numel,
        " elements of the manifest",
        kDamaged);
  }
  return entry;
}

template <typename Body>
void CheckpointReader::for_each_overlap(
    const std::string& parameter,
    const std::string& state,
    int64_t offset,
    int64_t numel,
    const Body& body) {
  const auto found = pieces_.find({parameter, state});
  TESSERA_CHECK(
      found != pieces_.end(),
      path_.string(),
      ": has no '",
      state,
      "' of parameter '",
      parameter,
      state == kMasterState
          ? "'; it is a checkpoint of another model."
          : "'; it was saved with another optimizer for it. Load with the same "
            "one.");
  int64_t next = offset;
  for (const Piece& piece : found->second) {
    const int64_t begin = std::max(next, *piece.tensor->offset);
    const int64_t end =
        std::min(offset + numel, *piece.tensor->offset + piece.tensor->numel);
    if (begin < end && begin == next) {
      const SafetensorsEntry& entry = checked_entry(piece.rank, *piece.tensor);
      body(entry, begin - *piece.tensor->offset, begin - offset, end - begin);
      next = end;
    }
  }
  TESSERA_CHECK(
      next == offset + numel,
      path_.string(),
      ": element ",
      next,
      " of '",
      state,
      "' of parameter '",
      parameter,
      "' is in no file",
      kDamaged);
}

void CheckpointReader::check_elements(
    const std::string& parameter,
    const std::string& state,
    int64_t offset,
    int64_t numel) {
  for_each_overlap(
      parameter,
      state,
      offset,
      numel,
      [](const SafetensorsEntry&, int64_t, int64_t, int64_t) {});
}

void CheckpointReader::read_elements(
    const std::string& parameter,
    const std::string& state,
    int64_t offset,
    const at::Tensor& values) {
  for_each_overlap(
      parameter,
      state,
      offset,
      values.numel(),
      [&](const SafetensorsEntry& entry, int64_t from, int64_t to, int64_t n) {
        const at::Tensor part = at::empty({n}, loaded_dtype_of(entry.dtype));
        const auto item = static_cast<int64_t>(size_of(entry.dtype));
        std::memcpy(
            part.mutable_data_ptr(),
            entry.data.data() + from * item,
            static_cast<size_t>(n * item));
        values.narrow(0, to, n).copy_(part);
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

bool CheckpointReader::contains(int r, const std::string& name) const {
  return find(r, name) != nullptr;
}

at::Tensor CheckpointReader::tensor(int r, const std::string& name) {
  const SavedTensor* saved = find(r, name);
  TESSERA_CHECK(
      saved != nullptr,
      path_.string(),
      ": has no '",
      name,
      "' of rank ",
      r,
      "; it was saved with another model or optimizer.");
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

} // namespace tessera
