// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint_save.h"

#include "tessera/engine/checkpoint/state_agreement.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/on_all_ranks.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/paging/tied_copies.h"

#include <c10/core/GradMode.h>

#include <exception>
#include <utility>
#include <vector>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

/// The parameters of this rank that it is the first one to have.
SavedParameters parameters_of(
    const CheckpointSubject& subject,
    const ModelTensors& model) {
  SavedParameters parameters;
  const auto reports = [&](const std::string& name) {
    return model.is_first_holder(*model.find(name));
  };
  for (const auto& page : subject.pager.pages()) {
    for (const sharding::PagedParameter& parameter : page->parameters()) {
      if (!reports(parameter.record.name())) {
        continue;
      }
      const at::Tensor& tensor = parameter.record.tensor;
      const ModelTensor& full = *model.find(parameter.record.name());
      parameters[full.name()] = {
          full.spec.sizes,
          model.spec_of(tensor).is_divided()
              ? sharding::row_major_strides(full.spec.sizes)
              : tensor.strides().vec(),
          0,
          {full.spec.names.begin() + 1, full.spec.names.end()},
          {}};
    }
  }
  for (const OptimizedParameter& parameter : subject.optimizer.parameters()) {
    if (reports(parameter.name())) {
      SavedParameter& saved = parameters[model.find(parameter.name())->name()];
      saved.steps = parameter.steps;
      saved.optimizer = parameter.settings.rule.optimizer().saved_name();
    }
  }
  return parameters;
}

CheckpointManifest describe(const CheckpointSubject& subject) {
  CheckpointManifest manifest;
  const ShardedOptimizer& optimizer = subject.optimizer;
  manifest.step = optimizer.steps();
  manifest.lineage = subject.lineage.id;
  const LossScaler::State scaler = subject.scaler.state();
  manifest.engine = {
      {"learning_rate", optimizer.learning_rate()},
      {"loss_scale",
       {{"scale", scaler.scale},
        {"good_steps", scaler.good_steps},
        {"skipped_steps", scaler.skipped_steps}}}};
  if (optimizer.averages() != nullptr) {
    manifest.engine["ema_steps"] = optimizer.averages()->steps();
  }
  const DeviceMesh& mesh = subject.pager.ranks().model();
  manifest.tensor_ranks = mesh.size(kTensorAxis);
  manifest.stages = mesh.size(sharding::kPipelineAxis);
  return manifest;
}

/// Says what of another run is lost, now or when the folder is loaded.
void log_other_checkpoints(const fs::path& path, CheckpointLineage& lineage) {
  const std::string found = lineage_of(path);
  if (!found.empty() && found != lineage.id) {
    log_warning(
        "save: {} was written by another run or another engine and is replaced. Save into a folder of its own, or load that checkpoint to continue its run.",
        path);
  }
  const auto all = list_checkpoints(path.parent_path());
  if (lineage.warned_of_later_steps || all.empty() || path >= all.back()) {
    return;
  }
  lineage.warned_of_later_steps = true;
  log_warning(
      "save: the folder of {} has checkpoints of later steps, up to {}, from another run or from before this one went back. Loading the folder takes the latest step: name the checkpoint, or remove those.",
      path,
      all.back().filename());
}

} // namespace

CheckpointSave::CheckpointSave(
    const CheckpointSubject& subject,
    const fs::path& folder,
    int keep_last)
    : rank_(subject.files.rank()), keep_last_(keep_last) {
  const c10::NoGradGuard no_grad;
  TESSERA_CHECK(
      !folder.empty(),
      "save: the folder is ''; name one, or '.' for the current folder.");
  subject.pager.agree_on_files(sharding::FileUse::kSave);
  ModelTensors model(subject.pager, subject.files, subject.module);
  std::vector<NamedState> states;
  model.on_all_ranks("save: reading the states", [&] {
    states = take_states(subject.states);
    manifest_ = describe(subject);
  });
  check_same_states(
      subject.files,
      states,
      manifest_.engine,
      subject.pager.ranks().watch_failures());
  if (subject.pager.ranks().model().size(sharding::kPipelineAxis) > 1) {
    const std::string copies = sharding::find_other_copies(subject.pager);
    model.on_all_ranks("save: comparing the copies of pipeline stages", [&] {
      TESSERA_CHECK(
          copies.empty(),
          "save: pipeline stages have other values of {}, of which each of them has a copy, and a checkpoint one; nothing was written. Write the same values on every stage that has it (a writable for_each_parameter()), or load a checkpoint.",
          copies);
    });
  }
  path_ = runtime::resolved_folder(
      checkpoint_path(folder, subject.optimizer.steps()));
  model.on_all_ranks("save: preparing the folder", [&] {
    file_.emplace(subject, model, std::move(states), rank_);
    parameters_ = parameters_of(subject, model);
    if (rank_ == 0) {
      log_other_checkpoints(path_, subject.lineage);
      written_.emplace(path_);
    }
  });
}

fs::path CheckpointSave::write(Communicator& ranks, const WaitCheck& check) {
  const c10::NoGradGuard no_grad;
  runtime::on_all_ranks(
      ranks,
      "save: writing the checkpoint",
      [&] {
        const fs::path partial = runtime::AtomicFolder::temporary_of(path_);
        const RankReport report{file_->write(partial), parameters_};
        runtime::write_file_atomically(
            partial / rank_file_name(rank_, ".json"), to_text(report));
      },
      check);
  runtime::on_all_ranks(
      ranks,
      "save: committing the checkpoint",
      [&] {
        if (rank_ == 0) {
          commit(ranks.size());
        }
      },
      check);
  if (rank_ == 0) {
    prune();
  }
  return path_;
}

void CheckpointSave::commit(int ranks) {
  const fs::path& partial = written_->temporary();
  for (int r = 0; r < ranks; ++r) {
    const fs::path file = partial / rank_file_name(r, ".json");
    RankReport report = read_report(file);
    manifest_.ranks.push_back(std::move(report.rank));
    manifest_.parameters.merge(std::move(report.parameters));
    fs::remove(file);
  }
  runtime::write_file_atomically(partial / "manifest.json", to_text(manifest_));
  written_->commit();
}

void CheckpointSave::prune() const {
  try {
    prune_checkpoints(path_, keep_last_);
  } catch (const std::exception& error) {
    log_warning("old checkpoints could not be removed: {}", error.what());
  }
}

} // namespace tessera::engine
