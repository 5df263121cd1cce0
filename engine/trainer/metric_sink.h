// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MetricSink` receives the metrics of a training run; there are sinks for
// TensorBoard, CSV and Weights & Biases.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// A run whose metrics are recorded.
struct MetricRun {
  std::filesystem::path folder; ///< exists
  std::string name;
  nlohmann::ordered_json configuration; ///< may be null
  /// The lines of the run so far, if it resumes or has gone back to a
  /// checkpoint.
  std::vector<nlohmann::ordered_json> lines;

  /// The last step of `lines`; 0 if there are none.
  int64_t resumed_step() const;
};

/// What train() gives the lines of its log to (TrainerOptions::metrics and
/// ::sinks), on rank 0 and one thread. Functions may throw tessera::Error; from
/// write() and finish() it is a warning, and training continues.
class MetricSink {
 public:
  virtual ~MetricSink() = default;

  /// Before the first line, and again when the run goes back to a checkpoint:
  /// what was written and is not among `run.lines` is void.
  virtual void begin(const MetricRun& run) = 0;

  /// @param line an object of numbers by name, as in metrics.jsonl, with a
  ///   "step"; a number that is not finite may be null.
  virtual void write(const nlohmann::ordered_json& line) = 0;

  /// After the last line.
  virtual void finish() {}
};

/// The sink with a name:
/// - "tensorboard": an event file in the run folder;
/// - "csv": metrics.csv there, a column for each name;
/// - "wandb": a run in wandb/ there, as Weights & Biases keeps it offline;
///   `wandb sync` sends it.
/// @throws tessera::Error naming those that there are.
std::unique_ptr<MetricSink> make_metric_sink(const std::string& name);

} // namespace tessera
