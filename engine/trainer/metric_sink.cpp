// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/metric_sink.h"

#include "tessera/engine/report/csv_file.h"
#include "tessera/engine/report/event_file.h"
#include "tessera/engine/report/wandb_file.h"
#include "tessera/engine/trainer/step_metrics.h"
#include "tessera/runtime/core/error.h"

#include <array>
#include <optional>
#include <utility>

namespace tessera {

namespace {

using Line = nlohmann::ordered_json;

/// "train/loss" and "heldout/loss" of "loss" and "heldout_loss".
std::string curve_of(const std::string& key) {
  return key.starts_with(engine::kHeldoutPrefix)
             ? "heldout/" + key.substr(engine::kHeldoutPrefix.size())
             : "train/" + key;
}

class TensorBoardSink : public MetricSink {
 public:
  void begin(const MetricRun& run) override {
    file_.reset();
    file_.emplace(run.folder, run.resumed_step());
  }
  void write(const Line& line) override {
    engine::EventFileWriter::Scalars scalars;
    for (const auto& [key, value] : line.items()) {
      if (key != "step" && value.is_number()) {
        scalars.emplace_back(curve_of(key), value.get<double>());
      }
    }
    file_->write(line.at("step").get<int64_t>(), scalars);
  }

 private:
  std::optional<engine::EventFileWriter> file_;
};

class CsvSink : public MetricSink {
 public:
  void begin(const MetricRun& run) override {
    file_.reset();
    file_.emplace(run.folder / "metrics.csv", run.lines);
  }
  void write(const Line& line) override {
    file_->write(line);
  }

 private:
  std::optional<engine::CsvWriter> file_;
};

class WandbSink : public MetricSink {
 public:
  void begin(const MetricRun& run) override {
    file_.reset();
    file_.emplace(
        run.folder / "wandb",
        run.name,
        run.configuration,
        /*continues=*/!run.lines.empty());
    for (const Line& line : run.lines) {
      write(line);
    }
  }
  void write(const Line& line) override {
    Line values = Line::object();
    for (const auto& [key, value] : line.items()) {
      if (key != "step" && value.is_number()) {
        values[curve_of(key)] = value;
      }
    }
    file_->write(line.at("step").get<int64_t>(), values);
  }
  void finish() override {
    file_->finish();
  }

 private:
  std::optional<engine::WandbFileWriter> file_;
};

struct NamedSink {
  const char* name;
  std::unique_ptr<MetricSink> (*make)();
};

template <typename Sink>
std::unique_ptr<MetricSink> made() {
  return std::make_unique<Sink>();
}

constexpr std::array<NamedSink, 3> kSinks{{
    {"tensorboard", made<TensorBoardSink>},
    {"csv", made<CsvSink>},
    {"wandb", made<WandbSink>},
}};

} // namespace

int64_t MetricRun::resumed_step() const {
  return lines.empty() ? 0 : lines.back().at("step").get<int64_t>();
}

std::unique_ptr<MetricSink> make_metric_sink(const std::string& name) {
  std::string names;
  for (const NamedSink& sink : kSinks) {
    if (name == sink.name) {
      return sink.make();
    }
    names += (names.empty() ? "" : ", ") + std::string(sink.name);
  }
  TESSERA_FAIL("output.metrics has '{}'; there are jsonl, {}", name, names);
}

} // namespace tessera
