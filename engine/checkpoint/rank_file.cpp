// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/rank_file.h"

#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <utility>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kSnapshotAlignment = 64;

int64_t snapshot_bytes_of(const TensorSpec& spec) {
  const int64_t bytes =
      runtime::bytes_of(c10::multiply_integers(spec.sizes), spec.dtype);
  return (bytes + kSnapshotAlignment - 1) / kSnapshotAlignment *
         kSnapshotAlignment;
}

} // namespace

std::string rank_file_name(int rank, const char* ending) {
  return "rank-" + std::to_string(rank) + ending;
}

RankFile::RankFile(
    const CheckpointSubject& subject,
    const ModelTensors& model,
    std::vector<NamedState> states,
    int rank) {
  rank_.file = rank_file_name(rank, ".safetensors");
  // Shared by the functions that read it, one tensor at a time.
  struct Source {
    SubjectTensors tensors;
    SliceReader reader{tensors};
  };
  const auto source = std::make_shared<Source>(tensors_of(subject, model));
  for (const StateSlice& slice : source->tensors.slices) {
    if (model.holds(*model.find(slice.parameter))) {
      add({.name = "piece/" + slice.state + "/" + slice.parameter,
           .parameter = slice.parameter,
           .state = slice.state,
           .part = slice.part},
          source->tensors.tensors[slice.tensor].dtype,
          {slice.part.numel},
          [source, &slice] { return source->reader.values(slice); });
    }
  }
  for (const SubjectFullTensor& full : source->tensors.full_tensors) {
    if (model.is_first_holder(*model.find(full.parameter))) {
      add({.name = "whole/" + full.state + "/" + full.parameter,
           .parameter = full.parameter,
           .state = full.state},
          full.values);
    }
  }
  for (const SubjectOpaque& opaque : source->tensors.opaques) {
    add({.name = "opaque/" + opaque.name}, opaque.save());
  }
  for (const auto& [name, values] : source->tensors.buffers) {
    add({.name = "buffer/" + name}, values);
  }
  const RngState generators;
  add_state(generators.name(), generators.save_state());
  for (NamedState& one : states) {
    if (rank == 0 || one.is_per_rank) {
      add_state(one.name, std::move(one.state));
    }
  }
}

void RankFile::add(SavedTensor saved, const at::Tensor& values) {
  add(std::move(saved),
      values.scalar_type(),
      values.sizes().vec(),
      [values = values.detach()] { return values; });
}

void RankFile::add(
    SavedTensor saved,
    at::ScalarType dtype,
    std::vector<int64_t> sizes,
    std::function<at::Tensor()> load) {
  specs_.push_back(full_spec({saved.name}, std::move(sizes), dtype));
  rank_.tensors.push_back(std::move(saved));
  loads_.push_back(std::move(load));
}

void RankFile::add_state(const std::string& name, CheckpointState state) {
  rank_.states[name] = std::move(state.values);
  for (const auto& [key, tensor] : state.tensors) {
    add({.name = "state/" + name + "/" + key}, tensor);
  }
}

int64_t RankFile::snapshot_bytes() const {
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs_) {
    bytes += snapshot_bytes_of(spec);
  }
  return bytes;
}

void RankFile::take_snapshot(const at::Tensor& memory) {
  int64_t offset = 0;
  for (size_t i = 0; i < loads_.size(); ++i) {
    const TensorSpec& spec = specs_[i];
    const at::Tensor copy =
        memory
            .narrow(
                0,
                offset,
                runtime::bytes_of(
                    c10::multiply_integers(spec.sizes), spec.dtype))
            .view(spec.dtype)
            .view(spec.sizes);
    copy.copy_(loads_[i]());
    loads_[i] = [copy] { return copy; };
    offset += snapshot_bytes_of(spec);
  }
}

SavedRank RankFile::write(const fs::path& folder) {
  sharding::TensorFileWriter writer(folder / rank_.file, specs_, {});
  for (size_t i = 0; i < loads_.size(); ++i) {
    const at::Tensor bytes = loads_[i]().cpu().contiguous();
    rank_.tensors[i].checksum =
        runtime::checksum_of(sharding::raw_bytes(bytes));
    writer.write(rank_.tensors[i].name, bytes);
  }
  writer.commit();
  rank_.bytes = fs::file_size(folder / rank_.file);
  return rank_;
}

} // namespace tessera::engine
