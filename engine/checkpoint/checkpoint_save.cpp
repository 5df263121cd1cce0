// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/engine/checkpoint/subject_tensors.h"
#include "tessera/engine/checkpoint/tensor_io.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_folder.h"
#include "tessera/runtime/io/checksum.h"

#include <c10/core/GradMode.h>

#include <functional>
#include <set>
#include <utility>

namespace tessera {

namespace fs = std::filesystem;

namespace {

std::string rank_file(int rank, const char* ending) {
  return "rank-" + std::to_string(rank) + ending;
}

/// One rank's file: what will be in it, then its bytes.
class RankFile {
 public:
  void add(SavedTensor what, const at::Tensor& values) {
    add(std::move(what),
        values.scalar_type(),
        values.sizes().vec(),
        [values = values.detach()] { return values; });
  }

  /// @param load brings the values into memory when they are written; called
  ///   in the order of the additions.
  void add(
      SavedTensor what,
      at::ScalarType dtype,
      std::vector<int64_t> sizes,
      std::function<at::Tensor()> load) {
    specs_.push_back({what.name, saved_dtype_of(dtype), std::move(sizes)});
    rank_.tensors.push_back(std::move(what));
    loads_.push_back(std::move(load));
  }

  void add_state(const Checkpointable& state) {
    CheckpointState saved = state.save_state();
    rank_.states[state.name()] = std::move(saved.values);
    for (const auto& [name, tensor] : saved.tensors) {
      add({.name = "state/" + state.name() + "/" + name}, tensor);
    }
  }

  /// @return what the manifest says about it.
  SavedRank write(const fs::path& folder, int rank) {
    rank_.file = rank_file(rank, ".safetensors");
    SafetensorsWriter writer(folder / rank_.file, std::move(specs_));
    for (size_t i = 0; i < loads_.size(); ++i) {
      const at::Tensor bytes = loads_[i]().cpu().contiguous();
      rank_.tensors[i].checksum = checksum_of(raw_bytes(bytes));
      if (bytes.numel() > 0) {
        writer.write(rank_.tensors[i].name, raw_bytes(bytes));
      }
    }
    writer.commit();
    rank_.bytes = fs::file_size(folder / rank_.file);
    return std::move(rank_);
  }

 private:
  SavedRank rank_;
  std::vector<SafetensorsSpec> specs_;
  std::vector<std::function<at::Tensor()>> loads_;
};

void check_names(const std::vector<Checkpointable*>& states) {
  std::set<std::string> names{RngState().name()};
  for (const Checkpointable* state : states) {
    TESSERA_CHECK(
        names.insert(state->name()).second,
        "save: two states are named '",
        state->name(),
        "'; give each a name of its own.");
  }
}

SavedRank write_rank(const CheckpointSubject& subject, const fs::path& folder) {
  const int rank = subject.pager.rank();
  const SubjectTensors tensors = tensors_of(subject);
  RankFile file;
  PieceReader reader(tensors);
  for (const SubjectPiece& piece : tensors.pieces) {
    if (subject.pager.mesh().replica == 0) { // the other copies are equal
      file.add(
          {.name = "piece/" + piece.state + "/" + piece.parameter,
           .parameter = piece.parameter,
           .state = piece.state,
           .offset = piece.offset,
           .numel = piece.numel},
          tensors.tensors[piece.tensor].dtype,
          {piece.numel},
          [&reader, &piece] { return reader.values(piece); });
    }
  }
  for (const SubjectWhole& whole : tensors.wholes) {
    if (rank == 0) {
      file.add(
          {.name = "whole/" + whole.state + "/" + whole.parameter,
           .parameter = whole.parameter,
           .state = whole.state},
          whole.values);
    }
  }
  for (const SubjectOpaque& opaque : tensors.opaques) {
    file.add({.name = "opaque/" + opaque.name}, opaque.save());
  }
  for (const auto& [name, values] : tensors.buffers) {
    file.add({.name = "buffer/" + name}, values);
  }
  file.add_state(RngState());
  for (const Checkpointable* state : subject.states) {
    if (rank == 0 || state->is_per_rank()) {
      file.add_state(*state);
    }
  }
  return file.write(folder, rank);
}

CheckpointManifest describe(const CheckpointSubject& subject) {
  CheckpointManifest manifest;
  manifest.step = subject.optimizer.steps();
  const LossScaler::State scaler = subject.scaler.state();
  manifest.engine = {
      {"learning_rate", subject.optimizer.learning_rate()},
      {"loss_scale",
       {{"scale", scaler.scale},
        {"good_steps", scaler.good_steps},
        {"skipped_steps", scaler.skipped_steps}}}};
  for (const auto& group : subject.pager.groups()) {
    for (const PagedParameter& parameter : group->parameters()) {
      const at::Tensor& tensor = parameter.record.tensor;
      manifest.parameters[parameter.record.name()] = {
          tensor.sizes().vec(), tensor.strides().vec(), 0};
    }
  }
  for (const OptimizedParameter& parameter : subject.optimizer.parameters()) {
    manifest.parameters[parameter.name()].steps = parameter.steps;
  }
  return manifest;
}

/// Joins what the ranks wrote about their files, and makes the checkpoint
/// visible. On rank 0.
void commit(const CheckpointSubject& subject, const fs::path& path) {
  const fs::path partial = partial_folder_of(path);
  CheckpointManifest manifest = describe(subject);
  for (int r = 0; r < subject.pager.world_size(); ++r) {
    const fs::path part = partial / rank_file(r, ".json");
    manifest.ranks.push_back(saved_rank(
        parse_json(read_text_file(part), part.string()), part.string()));
    fs::remove(part);
  }
  write_file_atomically(partial / "manifest.json", to_text(manifest));
  commit_folder(path);
}

} // namespace

fs::path save_checkpoint(
    const CheckpointSubject& subject,
    const fs::path& folder,
    int keep_last) {
  const c10::NoGradGuard no_grad;
  Pager& pager = subject.pager;
  const fs::path path =
      checkpoint_path(fs::absolute(folder), subject.optimizer.steps());
  on_all_ranks(pager, "save: preparing the folder", [&] {
    check_names(subject.states);
    if (pager.rank() == 0) {
      begin_folder(path);
    }
  });
  on_all_ranks(pager, "save: writing the checkpoint", [&] {
    const fs::path partial = partial_folder_of(path);
    const SavedRank rank = write_rank(subject, partial);
    write_file_atomically(
        partial / rank_file(pager.rank(), ".json"), to_json(rank).dump());
  });
  on_all_ranks(pager, "save: committing the checkpoint", [&] {
    if (pager.rank() == 0) {
      commit(subject, path);
    }
  });
  if (pager.rank() == 0) {
    try {
      prune_checkpoints(path.parent_path(), keep_last);
    } catch (const std::exception& error) {
      log_warning("old checkpoints could not be removed: ", error.what());
    }
  }
  return path;
}

} // namespace tessera
