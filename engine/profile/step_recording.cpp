// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/profile/step_recording.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/paging/transfer_waits.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <numeric>

namespace tessera::engine {

using runtime::StreamTime;
using runtime::TraceLane;

namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isdigit(c) != 0;
         });
}

} // namespace

std::string LayerTable::layer_of(const std::string& parameter) {
  size_t begin = 0;
  for (size_t dot = parameter.find('.'); dot != parameter.npos;
       dot = parameter.find('.', begin)) {
    if (is_number(parameter.substr(begin, dot - begin))) {
      return parameter.substr(0, dot);
    }
    begin = dot + 1;
  }
  return begin == 0 ? "(model)" : parameter.substr(0, begin - 1);
}

LayerTable::LayerTable(const Engine& engine) {
  const sharding::Pager& pager = engine.pager();
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < pager.pages().entries().size(); ++i) {
    const auto& record = pager.pages().parameter(i).record;
    const std::string name = layer_of(record.name());
    const auto [found, is_new] = numbers.try_emplace(name, names_.size());
    if (is_new) {
      names_.push_back(name);
    }
    layers_[record.tensor.storage().unsafeGetStorageImpl()] = found->second;
  }
}

std::optional<size_t> LayerTable::find(const at::RecordFunction& call) const {
  for (const c10::IValue& value : call.inputs()) {
    if (value.isTensor() && value.toTensor().defined() &&
        value.toTensor().has_storage()) {
      const auto found =
          layers_.find(value.toTensor().storage().unsafeGetStorageImpl());
      if (found != layers_.end()) {
        return found->second;
      }
    }
  }
  return std::nullopt;
}

StepObservation::StepObservation(
    const LayerTable& layers,
    c10::Device device,
    std::vector<ProfileRow>& rows)
    : layers_(layers), device_(device), rows_(rows) {}

std::optional<size_t> StepObservation::layer_of_node(
    const at::RecordFunction& call) const {
  const auto thread = nodes_.find(call.forwardThreadId());
  if (thread == nodes_.end() || call.seqNr() < 0) {
    return std::nullopt;
  }
  const auto after = thread->second.upper_bound(call.seqNr());
  return after == thread->second.begin()
             ? std::nullopt
             : std::optional(std::prev(after)->second);
}

void StepObservation::on_begin(const at::RecordFunction& call) {
  ThreadCalls& calls = calls_.local();
  calls.frames.begin(call);
  if (call.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    const std::lock_guard lock(mutex_);
    if (const auto layer = layer_of_node(call); layer && suspended_ == 0) {
      enter({*layer, true});
    }
    return;
  }
  if (calls.functions++ == 0) {
    poll();
    if (device_.is_cpu()) {
      calls.outermost_name = call.name();
      calls.outermost_begin = StreamTime::now(c10::DeviceType::CPU);
    }
  }
  const std::lock_guard lock(mutex_);
  if (suspended_ > 0) {
    return;
  }
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  // In backward, nodes say whose it is.
  if (!in_backward || runtime::is_recomputing()) {
    if (const auto layer = layers_.find(call)) {
      nodes_[at::RecordFunction::currentThreadId()]
            [static_cast<int64_t>(at::sequence_number::peek())] = *layer;
      enter({*layer, in_backward});
    }
  }
}

void StepObservation::on_end(const at::RecordFunction& call) {
  ThreadCalls& calls = calls_.local();
  const runtime::OperatorFlops flops = calls.frames.end();
  {
    const std::lock_guard lock(mutex_);
    if (pass_) {
      ProfileRow& row = rows_[pass_->layer];
      (pass_->is_backward ? row.backward_flops : row.forward_flops) +=
          flops.all;
    }
  }
  if (call.scope() == at::RecordScope::FUNCTION && --calls.functions == 0 &&
      device_.is_cpu()) {
    add(
        {TraceLane::kOperators,
         calls.outermost_name,
         calls.outermost_begin,
         StreamTime::now(c10::DeviceType::CPU),
         /*on_device=*/false,
         0});
  }
}

void StepObservation::enter(LayerPass pass) {
  if (is_open_ && pass_ == pass) {
    return;
  }
  close();
  if (std::find(used_.begin(), used_.end(), pass.layer) == used_.end()) {
    used_.push_back(pass.layer);
  }
  pass_ = pass;
  open();
}

void StepObservation::open() {
  is_open_ = true;
  live_bytes_ = runtime::live_bytes(device_);
  opened_ = StreamTime::now(device_);
}

void StepObservation::close() {
  if (!is_open_) {
    return;
  }
  is_open_ = false;
  segments_.push_back(
      {pass_->layer, pass_->is_backward, opened_, StreamTime::now(device_)});
  if (!pass_->is_backward) {
    rows_[pass_->layer].kept_bytes +=
        static_cast<double>(runtime::live_bytes(device_) - live_bytes_);
  }
}

void StepObservation::close_segment() {
  const std::lock_guard lock(mutex_);
  close();
}

void StepObservation::on_begin_span(TraceLane lane) {
  const std::lock_guard lock(mutex_);
  if (lane == TraceLane::kWaits) {
    close();
  } else if (lane == TraceLane::kOptimizer || lane == TraceLane::kData) {
    close();
    pass_.reset();
    ++suspended_;
  }
}

void StepObservation::on_end_span(TraceLane lane) {
  const std::lock_guard lock(mutex_);
  if (lane == TraceLane::kWaits && pass_ && suspended_ == 0) {
    open();
  } else if (lane == TraceLane::kOptimizer || lane == TraceLane::kData) {
    --suspended_;
  } else if (lane == TraceLane::kSteps) {
    close();
    pass_.reset();
    ++backwards_;
  }
}

StepRecording::StepRecording(Engine& engine)
    : engine_(engine), layers_(engine), device_(engine.device()) {
  runtime::install_cpu_memory_counter();
  engine_.transfer_waits().set_device(device_);
  for (const std::string& name : layers_.names()) {
    rows_.push_back({name});
  }
  device_start_ = StreamTime::now(device_);
  device_start_.seconds_since(device_start_); // waits for the device
  device_start_ = StreamTime::now(device_);
  host_start_ = StreamTime::now(c10::DeviceType::CPU);
  clock_start_ = std::chrono::system_clock::now();
  step_ends_.push_back(device_start_);
  observation_ = std::make_unique<StepObservation>(layers_, device_, rows_);
}

StepRecording::~StepRecording() = default;

void StepRecording::end_step() {
  TESSERA_CHECK(
      observation_ != nullptr,
      "StepProfiler::end_step: the profile is finished; make a new one.");
  observation_->close_segment();
  step_ends_.push_back(StreamTime::now(device_));
}

void StepRecording::finish() {
  if (observation_ == nullptr) {
    return;
  }
  observation_->close_segment();
  observation_->poll();
  const auto segments = observation_->take_segments();
  for (runtime::RecordedSpan& span : observation_->take()) {
    const StreamTime& start = span.on_device ? device_start_ : host_start_;
    spans_.push_back(
        {span.lane,
         std::move(span.name),
         span.begin.seconds_since(start),
         span.end.seconds_since(start),
         span.bytes});
  }
  add_segments(segments);
  for (const size_t layer : observation_->used_layers()) {
    profile_.layers.push_back(rows_[layer]);
  }
  const auto forwards =
      static_cast<double>(std::max<int64_t>(observation_->backwards(), 1));
  observation_.reset();
  for (ProfileRow& row : profile_.layers) {
    row.kept_bytes /= forwards;
  }
  sum_up();
}

void StepRecording::add_segments(const std::vector<LayerSegment>& segments) {
  for (const LayerSegment& segment : segments) {
    const double begin_s = segment.begin.seconds_since(device_start_);
    const double end_s = segment.end.seconds_since(device_start_);
    ProfileRow& row = rows_[segment.layer];
    (segment.is_backward ? row.backward_s : row.forward_s) += end_s - begin_s;
    spans_.push_back(
        {TraceLane::kCompute,
         row.name + (segment.is_backward ? " backward" : " forward"),
         begin_s,
         end_s,
         0});
  }
}

void StepRecording::sum_up() {
  const auto steps = static_cast<int64_t>(step_ends_.size()) - 1;
  const double total_s = step_ends_.back().seconds_since(step_ends_.front());
  const double divisor = static_cast<double>(std::max<int64_t>(steps, 1));
  profile_.rank = engine_.pager().ranks().of_module().mesh().rank();
  profile_.steps = steps;
  profile_.step_s = total_s / divisor;
  std::vector<const TimedSpan*> waits;
  for (const TimedSpan& span : spans_) {
    if (span.lane == TraceLane::kWaits) {
      waits.push_back(&span);
      profile_.waits_s += (span.end_s - span.begin_s) / divisor;
    }
  }
  for (const TimedSpan& span : spans_) {
    if (span.lane != TraceLane::kOptimizer && span.lane != TraceLane::kData) {
      continue;
    }
    double seconds = span.end_s - span.begin_s;
    for (const TimedSpan* wait : waits) {
      seconds -= wait->begin_s >= span.begin_s && wait->end_s <= span.end_s
                     ? wait->end_s - wait->begin_s
                     : 0;
    }
    (span.lane == TraceLane::kData ? profile_.data_s : profile_.optimizer_s) +=
        seconds / divisor;
  }
  profile_.other_s = profile_.step_s - profile_.waits_s - profile_.optimizer_s -
                     profile_.data_s;
  for (ProfileRow& row : profile_.layers) {
    row.forward_s /= divisor;
    row.backward_s /= divisor;
    row.forward_flops /= divisor;
    row.backward_flops /= divisor;
    profile_.other_s -= row.seconds();
  }
  profile_.other_s = std::max(profile_.other_s, 0.0);
  for (size_t step = 1; step < step_ends_.size(); ++step) {
    spans_.push_back(
        {TraceLane::kSteps,
         "step " + std::to_string(step),
         step_ends_[step - 1].seconds_since(device_start_),
         step_ends_[step].seconds_since(device_start_),
         0});
  }
}

/// The line of each span: that of its lane, or a further one where spans of a
/// lane overlap, which the format does not allow within a line, and are not
/// nested.
std::vector<int> StepRecording::lines_of(const std::vector<TimedSpan>& spans) {
  std::vector<size_t> order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return spans[a].begin_s < spans[b].begin_s ||
           (spans[a].begin_s == spans[b].begin_s &&
            spans[a].end_s > spans[b].end_s);
  });
  std::vector<int> lines(spans.size());
  // Ends of the spans that are open on each line.
  std::map<int, std::vector<double>> open;
  for (const size_t i : order) {
    const int first = static_cast<int>(spans[i].lane) * kMostLines;
    int line = first;
    for (; line < first + kMostLines - 1; ++line) {
      auto& ends = open[line];
      while (!ends.empty() && ends.back() <= spans[i].begin_s) {
        ends.pop_back();
      }
      if (ends.empty() || spans[i].end_s <= ends.back()) {
        break;
      }
    }
    open[line].push_back(spans[i].end_s);
    lines[i] = line;
  }
  return lines;
}

const StepProfile& StepRecording::profile() const {
  TESSERA_CHECK(
      observation_ == nullptr, "StepProfiler::profile: call finish() first.");
  return profile_;
}

nlohmann::ordered_json StepRecording::trace() const {
  const int rank = profile().rank;
  auto events = nlohmann::ordered_json::array();
  const auto add_metadata =
      [&](const char* label, int lane, nlohmann::ordered_json args) {
        events.push_back(
            {{"ph", "M"},
             {"name", label},
             {"pid", rank},
             {"tid", lane},
             {"args", std::move(args)}});
      };
  add_metadata(
      "process_name",
      0,
      {{"name", formatted("rank {} ({})", rank, device_.str())}});
  add_metadata("process_sort_index", 0, {{"sort_index", rank}});
  const std::vector<int> lines = lines_of(spans_);
  std::vector<std::string> names(runtime::kTraceLanes * kMostLines);
  for (size_t i = 0; i < lines.size(); ++i) {
    const int number = lines[i] % kMostLines;
    names[static_cast<size_t>(lines[i])] =
        runtime::name_of(spans_[i].lane) +
        (number == 0 ? "" : " (" + std::to_string(number + 1) + ")");
  }
  for (size_t line = 0; line < names.size(); ++line) {
    if (!names[line].empty()) {
      const auto number = static_cast<int>(line);
      add_metadata("thread_name", number, {{"name", names[line]}});
      add_metadata("thread_sort_index", number, {{"sort_index", number}});
    }
  }
  const double start_us =
      std::chrono::duration<double, std::micro>(clock_start_.time_since_epoch())
          .count();
  for (size_t i = 0; i < spans_.size(); ++i) {
    const TimedSpan& span = spans_[i];
    nlohmann::ordered_json event{
        {"ph", "X"},
        {"name", span.name},
        {"pid", rank},
        {"tid", lines[i]},
        {"ts", start_us + 1e6 * span.begin_s},
        {"dur", 1e6 * std::max(span.end_s - span.begin_s, 0.0)}};
    if (span.bytes > 0) {
      event["args"] = {{"bytes", span.bytes}};
    }
    events.push_back(std::move(event));
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

} // namespace tessera::engine
