// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/profile/step_profiler.h"

#include "tessera/engine/profile/step_recording.h"
#include "tessera/engine/report/plot_ticks.h"
#include "tessera/engine/report/progress_line.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace tessera {

namespace {

std::string row_text(
    const std::string& name,
    double seconds,
    double step_s,
    const std::string& forward,
    const std::string& backward,
    const std::string& flops,
    const std::string& rate,
    const std::string& kept) {
  char text[256];
  std::snprintf(
      text,
      sizeof(text),
      "%-36s %10s %11s %6s %9s %10s %11s\n",
      name.size() <= 36 ? name.c_str()
                        : ("..." + name.substr(name.size() - 33)).c_str(),
      forward.c_str(),
      backward.c_str(),
      engine::fixed(step_s > 0 ? 100 * seconds / step_s : 0, 1).c_str(),
      flops.c_str(),
      rate.c_str(),
      kept.c_str());
  return text;
}

std::string ms(double seconds) {
  return engine::fixed(1000 * seconds, 2);
}

} // namespace

std::string to_text(const StepProfile& profile) {
  std::string out = formatted(
      "profile of rank {}: means of {} steps, {} ms each\n",
      profile.rank,
      profile.steps,
      ms(profile.step_s));
  char head[256];
  std::snprintf(
      head,
      sizeof(head),
      "%-36s %10s %11s %6s %9s %10s %11s\n",
      "layer",
      "forward ms",
      "backward ms",
      "%",
      "FLOP",
      "FLOP/s",
      "kept");
  out += head;
  for (const ProfileRow& row : profile.layers) {
    const double flops = row.forward_flops + row.backward_flops;
    out += row_text(
        row.name,
        row.seconds(),
        profile.step_s,
        ms(row.forward_s),
        ms(row.backward_s),
        flops > 0 ? engine::format_count(flops) : "-",
        flops > 0 && row.seconds() > 0
            ? engine::format_count(flops / row.seconds())
            : "-",
        engine::format_bytes(
            static_cast<int64_t>(std::max(row.kept_bytes, 0.0))));
  }
  const std::pair<const char*, double> rest[] = {
      {"waits for transfers", profile.waits_s},
      {"optimizer", profile.optimizer_s},
      {"data", profile.data_s},
      {"outside of layers", profile.other_s}};
  for (const auto& [name, seconds] : rest) {
    out += row_text(name, seconds, profile.step_s, ms(seconds), "", "", "", "");
  }
  return out;
}

nlohmann::ordered_json to_json(const StepProfile& profile) {
  nlohmann::ordered_json json{
      {"rank", profile.rank},
      {"steps", profile.steps},
      {"step_s", profile.step_s},
      {"waits_s", profile.waits_s},
      {"optimizer_s", profile.optimizer_s},
      {"data_s", profile.data_s},
      {"other_s", profile.other_s},
      {"layers", nlohmann::ordered_json::array()}};
  for (const ProfileRow& row : profile.layers) {
    json["layers"].push_back(
        {{"name", row.name},
         {"forward_s", row.forward_s},
         {"backward_s", row.backward_s},
         {"forward_flops", row.forward_flops},
         {"backward_flops", row.backward_flops},
         {"kept_bytes", row.kept_bytes}});
  }
  return json;
}

class StepProfiler::Recording : public engine::StepRecording {
 public:
  using StepRecording::StepRecording;
};

StepProfiler::StepProfiler(Engine& engine)
    : recording_(std::make_unique<Recording>(engine)) {}

StepProfiler::~StepProfiler() = default;

void StepProfiler::end_step() {
  recording_->end_step();
}

void StepProfiler::finish() {
  recording_->finish();
}

const StepProfile& StepProfiler::profile() const {
  return recording_->profile();
}

void StepProfiler::write_trace(const std::filesystem::path& path) const {
  runtime::write_file_atomically(path, recording_->trace().dump());
}

} // namespace tessera
