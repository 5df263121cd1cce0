// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weight_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::sharding {

namespace {

namespace fs = std::filesystem;

/// Number of elements that are read and converted at a time.
constexpr int64_t kChunkNumel = int64_t{1} << 19;

/// Returns the tensors in an index, with the files that contain them.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const auto json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  const auto weight_map = json.is_object()
                              ? json.value("weight_map", nlohmann::json())
                              : nlohmann::json();
  TESSERA_CHECK(
      weight_map.is_object() && !weight_map.empty(),
      "{} names no tensors: its 'weight_map' is {}; download the model folder again",
      path,
      runtime::show_json(weight_map));
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : weight_map.items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    TESSERA_CHECK(
        !text.empty() && fs::path(text).filename() == text &&
            text.find('\0') == std::string::npos,
        "{}: tensor '{}' is said to be in {}, which is not the name of a file in the folder",
        path,
        name,
        runtime::show_json(file));
    files.emplace(name, text);
  }
  return files;
}

/// Copies elements [first, first + count) of the view to `out`.
template <size_t kBytes>
void copy_strided(
    const EntryView& view,
    int64_t first,
    int64_t count,
    std::byte* out) {
  const size_t dims = view.sizes.size();
  std::vector<int64_t> index(dims);
  int64_t at = view.offset;
  for (size_t d = dims; d-- > 0;) {
    index[d] = first % view.sizes[d];
    first /= view.sizes[d];
    at += index[d] * view.strides[d];
  }
  const std::byte* const elements = view.entry->data.data();
  for (int64_t done = 0; done < count; ++done) {
    std::memcpy(
        out + done * static_cast<int64_t>(kBytes),
        elements + at * static_cast<int64_t>(kBytes),
        kBytes);
    for (size_t d = dims; d-- > 0;) {
      at += view.strides[d];
      if (++index[d] < view.sizes[d]) {
        break;
      }
      at -= view.sizes[d] * view.strides[d];
      index[d] = 0;
    }
  }
}

void copy_elements(
    const EntryView& view,
    int64_t first,
    int64_t count,
    std::byte* out) {
  const auto size = static_cast<int64_t>(size_of(view.entry->dtype));
  if (view.is_contiguous()) {
    std::memcpy(
        out,
        view.entry->data.data() + (view.offset + first) * size,
        static_cast<size_t>(count * size));
    return;
  }
  switch (size) {
    case 1:
      return copy_strided<1>(view, first, count, out);
    case 2:
      return copy_strided<2>(view, first, count, out);
    case 4:
      return copy_strided<4>(view, first, count, out);
    default:
      return copy_strided<8>(view, first, count, out);
  }
}

} // namespace

EntryView EntryView::whole(const runtime::SafetensorsEntry& entry) {
  EntryView view{&entry, 0, entry.shape, std::vector<int64_t>()};
  view.strides.resize(entry.shape.size());
  int64_t stride = 1;
  for (size_t d = entry.shape.size(); d-- > 0;) {
    view.strides[d] = stride;
    stride *= entry.shape[d];
  }
  return view;
}

int64_t EntryView::numel() const {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    product *= size;
  }
  return product;
}

bool EntryView::is_contiguous() const {
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != stride) {
      return false;
    }
    stride *= sizes[d];
  }
  return true;
}

bool EntryView::lies_within_entry() const {
  if (numel() == 0) {
    return true;
  }
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (strides[d] < 0) {
      return false;
    }
    last += (sizes[d] - 1) * strides[d];
  }
  return offset >= 0 && last < whole(*entry).numel();
}

WeightFiles WeightFiles::open(const fs::path& path) {
  WeightFiles weights;
  weights.path_ = path;
  const fs::path whole = path / "model.safetensors";
  const fs::path index = path / "model.safetensors.index.json";
  if (!fs::is_directory(path)) {
    path.extension() == ".json" ? weights.add_index(path)
                                : weights.add_whole(path);
  } else if (fs::exists(whole)) {
    weights.add_whole(whole);
  } else {
    TESSERA_CHECK(
        fs::exists(index),
        "{} contains neither model.safetensors nor model.safetensors.index.json; pytorch_model.bin is not supported: save the model again with transformers, which writes safetensors",
        path);
    weights.add_index(index);
  }
  return weights;
}

void WeightFiles::add_whole(const fs::path& file) {
  files_.push_back(runtime::SafetensorsFile::open(file));
  for (const runtime::SafetensorsEntry& entry : files_.back().entries()) {
    entries_.emplace(entry.name, &entry);
  }
}

void WeightFiles::add_index(const fs::path& index) {
  const auto file_of = read_index(index);
  std::map<std::string, size_t> positions;
  for (const auto& [name, file] : file_of) {
    if (positions.emplace(file, files_.size()).second) {
      files_.push_back(
          runtime::SafetensorsFile::open(index.parent_path() / file));
    }
  }
  for (const auto& [name, file] : file_of) {
    entries_.emplace(name, &files_[positions.at(file)].at(name));
  }
}

at::ScalarType scalar_type_of(const runtime::SafetensorsEntry& entry) {
  switch (entry.dtype) {
    case runtime::SafetensorsDtype::kBool:
      return at::kBool;
    case runtime::SafetensorsDtype::kU8:
      return at::kByte;
    case runtime::SafetensorsDtype::kI8:
      return at::kChar;
    case runtime::SafetensorsDtype::kI16:
      return at::kShort;
    case runtime::SafetensorsDtype::kI32:
      return at::kInt;
    case runtime::SafetensorsDtype::kI64:
      return at::kLong;
    case runtime::SafetensorsDtype::kF16:
      return at::kHalf;
    case runtime::SafetensorsDtype::kBF16:
      return at::kBFloat16;
    case runtime::SafetensorsDtype::kF32:
      return at::kFloat;
    case runtime::SafetensorsDtype::kF64:
      return at::kDouble;
    default:
      TESSERA_FAIL(
          "tensor '{}' is {}, which is not supported for computation; convert the checkpoint",
          entry.name,
          name_of(entry.dtype));
  }
}

void read_elements(
    const EntryView& view,
    int64_t first,
    const at::Tensor& target) {
  const c10::NoGradGuard no_grad;
  // Entries need not be aligned: copy bytes, then convert.
  const at::Tensor chunk = at::empty(
      {std::min(kChunkNumel, target.numel())},
      at::TensorOptions().dtype(scalar_type_of(*view.entry)));
  for (int64_t done = 0; done < target.numel(); done += kChunkNumel) {
    const int64_t count = std::min(kChunkNumel, target.numel() - done);
    copy_elements(
        view, first + done, count, static_cast<std::byte*>(chunk.data_ptr()));
    target.narrow(0, done, count).copy_(chunk.narrow(0, 0, count));
  }
}

void read_whole(const EntryView& view, const at::Tensor& target) {
  const c10::NoGradGuard no_grad;
  if (target.is_contiguous()) {
    read_elements(view, 0, target.detach().view({-1}));
    return;
  }
  const at::Tensor rows = at::empty({target.numel()}, target.options());
  read_elements(view, 0, rows);
  target.detach().copy_(rows.view(target.sizes()));
}

} // namespace tessera::sharding
