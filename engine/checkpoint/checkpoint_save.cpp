// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/engine/checkpoint/subject_tensors.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_folder.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <c10/core/GradMode.h>

#include <functional>
#include <set>
#include <utility>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

std::string rank_file(int rank, const char* ending) {
  return "rank-" + std::to_string(rank) + ending;
}

/// The file of one rank: first its table of contents, then its bytes.
class RankFile {
 public:
  void add(SavedTensor what, const at::Tensor& values) {
    add(std::move(what),
        values.scalar_type(),
        values.sizes().vec(),
        [values = values.detach()] { return values; });
  }

  /// @param load returns the values when they are written; called in the order
  ///   of the additions.
  void add(
      SavedTensor what,
      at::ScalarType dtype,
      std::vector<int64_t> sizes,
      std::function<at::Tensor()> load) {
    specs_.push_back(whole_spec({what.name}, std::move(sizes), dtype));
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

  /// @return its entry in the manifest.
  SavedRank write(const fs::path& folder, int rank) {
    rank_.file = rank_file(rank, ".safetensors");
    sharding::TensorFileWriter writer(folder / rank_.file, specs_, {});
    for (size_t i = 0; i < loads_.size(); ++i) {
      const at::Tensor bytes = loads_[i]().cpu().contiguous();
      rank_.tensors[i].checksum =
          runtime::checksum_of(sharding::raw_bytes(bytes));
      writer.write(rank_.tensors[i].name, bytes);
    }
    writer.commit();
    rank_.bytes = fs::file_size(folder / rank_.file);
    return std::move(rank_);
  }

 private:
  SavedRank rank_;
  std::vector<TensorSpec> specs_;
  std::vector<std::function<at::Tensor()>> loads_;
};

void check_names(const std::vector<Checkpointable*>& states) {
  std::set<std::string> names{RngState().name()};
  for (const Checkpointable* state : states) {
    TESSERA_CHECK(
        names.insert(state->name()).second,
        "save: two states are named '{}'; give each a unique name.",
        state->name());
  }
}

SavedRank write_rank(
    const CheckpointSubject& subject,
    const ModelTensors& model,
    int rank,
    const fs::path& folder) {
  const SubjectTensors tensors = tensors_of(subject, model);
  PieceReader reader(tensors);
  RankFile file;
  for (const SubjectPiece& piece : tensors.pieces) {
    if (model.holds(*model.find(piece.parameter))) {
      file.add(
          {.name = "piece/" + piece.state + "/" + piece.parameter,
           .parameter = piece.parameter,
           .state = piece.state,
           .part = piece.part},
          tensors.tensors[piece.tensor].dtype,
          {piece.part.numel},
          [&reader, &piece] { return reader.values(piece); });
    }
  }
  for (const SubjectWhole& whole : tensors.wholes) {
    if (model.is_first_holder(*model.find(whole.parameter))) {
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

/// The parameters of this rank that it is the first one to have.
SavedParameters parameters_of(
    const CheckpointSubject& subject,
    const ModelTensors& model) {
  SavedParameters parameters;
  const auto reports = [&](const std::string& name) {
    return model.is_first_holder(*model.find(name));
  };
  for (const auto& group : subject.pager.groups()) {
    for (const sharding::PagedParameter& parameter : group->parameters()) {
      if (!reports(parameter.record.name())) {
        continue;
      }
      const at::Tensor& tensor = parameter.record.tensor;
      const ModelTensor& whole = *model.find(parameter.record.name());
      parameters[whole.name()] = {
          whole.spec.sizes,
          model.spec_of(tensor).is_divided()
              ? sharding::row_major_strides(whole.spec.sizes)
              : tensor.strides().vec(),
          0,
          {whole.spec.names.begin() + 1, whole.spec.names.end()}};
    }
  }
  for (const OptimizedParameter& parameter : subject.optimizer.parameters()) {
    if (reports(parameter.name())) {
      parameters[model.find(parameter.name())->name()].steps = parameter.steps;
    }
  }
  return parameters;
}

CheckpointManifest describe(const CheckpointSubject& subject) {
  CheckpointManifest manifest;
  const ShardedOptimizer& optimizer = subject.optimizer;
  manifest.step = optimizer.steps();
  const LossScaler::State scaler = subject.scaler.state();
  manifest.engine = {
      {"learning_rate", optimizer.learning_rate()},
      {"loss_scale",
       {{"scale", scaler.scale},
        {"good_steps", scaler.good_steps},
        {"skipped_steps", scaler.skipped_steps}}}};
  const DeviceMesh& mesh = subject.pager.model_mesh();
  manifest.tensor_ranks = mesh.size(kTensorAxis);
  manifest.stages = mesh.size(sharding::kPipelineAxis);
  return manifest;
}

/// Merges what the ranks reported about their files, and makes the checkpoint
/// visible. On rank 0.
void commit(const CheckpointSubject& subject, runtime::AtomicFolder& folder) {
  const fs::path& partial = folder.temporary();
  CheckpointManifest manifest = describe(subject);
  for (int r = 0; r < subject.files.size(); ++r) {
    const fs::path file = partial / rank_file(r, ".json");
    RankReport report = read_report(file);
    manifest.ranks.push_back(std::move(report.rank));
    manifest.parameters.merge(std::move(report.parameters));
    fs::remove(file);
  }
  runtime::write_file_atomically(partial / "manifest.json", to_text(manifest));
  folder.commit();
}

} // namespace

fs::path save_checkpoint(
    const CheckpointSubject& subject,
    const fs::path& folder,
    int keep_last) {
  const c10::NoGradGuard no_grad;
  subject.pager.agree_on_files(sharding::FileUse::kSave);
  ModelTensors model(subject.pager, subject.files, subject.module);
  const int rank = subject.files.rank();
  const fs::path path = runtime::resolved_folder(
      checkpoint_path(folder, subject.optimizer.steps()));
  std::optional<runtime::AtomicFolder> written; // on rank 0
  model.on_all_ranks("save: preparing the folder", [&] {
    check_names(subject.states);
    if (rank == 0) {
      written.emplace(path);
    }
  });
  model.on_all_ranks("save: writing the checkpoint", [&] {
    const fs::path partial = runtime::AtomicFolder::temporary_of(path);
    const RankReport report{
        write_rank(subject, model, rank, partial),
        parameters_of(subject, model)};
    runtime::write_file_atomically(
        partial / rank_file(rank, ".json"), to_text(report));
  });
  model.on_all_ranks("save: committing the checkpoint", [&] {
    if (rank == 0) {
      commit(subject, *written);
    }
  });
  if (rank == 0) {
    try {
      prune_checkpoints(path.parent_path(), keep_last);
    } catch (const std::exception& error) {
      log_warning("old checkpoints could not be removed: {}", error.what());
    }
  }
  return path;
}

} // namespace tessera::engine
