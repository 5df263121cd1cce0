// SPDX-License-Identifier: Apache-2.0
#pragma once
// export_run() is `tessera export`: it makes a model of a checkpoint of a run.

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::tasks {

struct ExportOptions {
  std::filesystem::path run; ///< the run folder
  std::filesystem::path to; ///< empty: model/ or adapter/ in the run folder
  std::string from; ///< as of chosen_checkpoint()
  /// `key.path=value` each, of the run's configuration.
  std::vector<std::string> overrides;
};

/// Joins the job (tessera::init()), loads the checkpoint, whatever ranks have
/// saved it, writes the model and reports on standard output. Opens the data of
/// the run, too. Collective.
/// @throws tessera::Error if there is no checkpoint, `to` contains a model, or
///     the run folder is in use.
void export_run(const ExportOptions& options);

} // namespace tessera::tasks
