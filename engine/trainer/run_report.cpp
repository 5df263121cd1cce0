// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_report.h"

#include "tessera/engine/report/plot_ticks.h"
#include "tessera/engine/report/progress_line.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace tessera::engine {

namespace {

struct NamedPart {
  const char* label;
  double StepSplit::*seconds;
};

constexpr std::array<NamedPart, 5> kParts{{
    {"data", &StepSplit::data},
    {"forward", &StepSplit::forward},
    {"backward", &StepSplit::backward},
    {"optimizer", &StepSplit::optimizer},
    {"exposed transfer", &StepSplit::exposed_transfer},
}};

LinePlot plot_over_steps(std::string title, std::string y_label) {
  LinePlot plot;
  plot.title = std::move(title);
  plot.x_label = "step";
  plot.y_label = std::move(y_label);
  return plot;
}

template <typename Value>
PlotSeries series_of(
    const std::vector<StepMetrics>& lines,
    std::string label,
    bool smooth,
    const Value& value) {
  PlotSeries series{std::move(label), {}, smooth};
  for (const StepMetrics& line : lines) {
    series.points.push_back({static_cast<double>(line.step), value(line)});
  }
  return series;
}

/// The lines that have the split of the time of a step.
std::vector<StepMetrics> timed(const std::vector<StepMetrics>& lines) {
  std::vector<StepMetrics> result;
  for (const StepMetrics& line : lines) {
    if (line.split) {
      result.push_back(line);
    }
  }
  return result;
}

LinePlot time_plot(const std::vector<StepMetrics>& lines) {
  LinePlot plot = plot_over_steps("Step time", "ms");
  for (const NamedPart& part : kParts) {
    plot.series.push_back(
        series_of(lines, part.label, false, [&](const StepMetrics& line) {
          return 1000 * (*line.split).*part.seconds;
        }));
  }
  return plot;
}

std::vector<ReportShare> shares_of(const std::vector<StepMetrics>& lines) {
  std::vector<ReportShare> shares;
  // The first line includes one-time work: recording the plan, allocations.
  const size_t first = lines.size() > 1 ? 1 : 0;
  double steps = 0;
  for (size_t i = first; i < lines.size(); ++i) {
    steps +=
        static_cast<double>(lines[i].step - (i > 0 ? lines[i - 1].step : 0));
  }
  for (const NamedPart& part : kParts) {
    double seconds = 0;
    for (size_t i = first; i < lines.size(); ++i) {
      seconds +=
          (*lines[i].split).*part.seconds *
          static_cast<double>(lines[i].step - (i > 0 ? lines[i - 1].step : 0));
    }
    shares.push_back({part.label, seconds / steps});
  }
  return shares;
}

/// Of the steps that were not skipped, if gradients are clipped.
LinePlot norm_plot(const std::vector<StepMetrics>& lines) {
  LinePlot plot = plot_over_steps("Gradient norm before clipping", "norm");
  PlotSeries series{"", {}, /*smooth=*/false};
  for (const StepMetrics& line : lines) {
    if (line.grad_norm && std::isfinite(*line.grad_norm)) {
      series.points.push_back(
          {static_cast<double>(line.step), *line.grad_norm});
    }
  }
  plot.series.push_back(std::move(series));
  return plot;
}

/// The share of the peak, where it was counted.
PlotSeries utilization_series(const std::vector<StepMetrics>& lines) {
  PlotSeries series{"", {}, /*smooth=*/false};
  for (const StepMetrics& line : lines) {
    if (line.work) {
      series.points.push_back(
          {static_cast<double>(line.step),
           100 * line.work->utilization(line.step_seconds)});
    }
  }
  return series;
}

/// "41.2 % = 1.20T FLOP per step / (0.52 s x 5.60T FLOP/s, the peak of the
/// ranks' devices)".
std::string utilization_text(const StepMetrics& line) {
  const StepWork& work = *line.work;
  return formatted(
      "{} % = {} model FLOP per step / ({} s x {} FLOP/s, the {} of all ranks)",
      fixed(100 * work.utilization(line.step_seconds), 1),
      format_count(work.flops),
      format_short(line.step_seconds),
      format_count(work.peak_flops_per_s),
      work.is_measured ? "measured peak of matrix products"
                       : "data sheets' peak");
}

constexpr const char* kHeldoutLoss = "heldout_loss";

PlotSeries heldout_series(
    const std::vector<StepMetrics>& lines,
    const std::string& name) {
  PlotSeries series{"held-out", {}, /*smooth=*/false};
  for (const StepMetrics& line : lines) {
    for (const auto& [local, value] : line.heldout) {
      if (local == name) {
        series.points.push_back({static_cast<double>(line.step), value});
      }
    }
  }
  return series;
}

/// Of each held-out value but the loss.
std::vector<LinePlot> heldout_plots(const std::vector<StepMetrics>& lines) {
  std::vector<std::string> names;
  for (const StepMetrics& line : lines) {
    for (const auto& [name, value] : line.heldout) {
      if (name != kHeldoutLoss &&
          std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  std::vector<LinePlot> plots;
  for (const std::string& name : names) {
    std::string label = name.substr(kHeldoutPrefix.size());
    std::replace(label.begin(), label.end(), '_', ' ');
    LinePlot plot = plot_over_steps("Held-out " + label, label);
    plot.series.push_back(heldout_series(lines, name));
    plots.push_back(std::move(plot));
  }
  return plots;
}

} // namespace

LinePlot loss_plot(const std::vector<StepMetrics>& lines) {
  LinePlot plot = plot_over_steps("Training loss", "loss");
  plot.series.push_back(
      series_of(lines, "loss", /*smooth=*/true, [](const StepMetrics& line) {
        return line.loss;
      }));
  if (auto heldout = heldout_series(lines, kHeldoutLoss);
      !heldout.points.empty()) {
    plot.title = "Loss";
    plot.series.push_back(std::move(heldout));
  }
  return plot;
}

HtmlReport run_report(
    const std::string& title,
    const std::vector<StepMetrics>& lines,
    const RunFacts& facts,
    const std::string& configuration) {
  HtmlReport report;
  report.title = title;
  report.facts = facts;
  report.configuration = configuration;
  if (lines.empty()) {
    return report;
  }
  const StepMetrics& last = lines.back();
  int64_t peak = 0;
  for (const StepMetrics& line : lines) {
    peak = std::max(peak, line.memory_bytes);
  }
  const RunFacts measured = {
      {"steps", std::to_string(last.step)},
      {"epochs", fixed(last.epoch, 2)},
      {"last loss", fixed(last.loss, 4)},
      {"tokens/s at the end", format_count(last.tokens_per_s)},
      {"peak memory of rank 0", format_bytes(peak)}};
  report.facts.insert(report.facts.end(), measured.begin(), measured.end());
  if (last.work) {
    report.facts.emplace_back(
        last.work->is_measured ? "of measured peak, last line"
                               : "MFU, last line",
        utilization_text(last));
  }
  report.plots.push_back(loss_plot(lines));
  for (LinePlot& plot : heldout_plots(lines)) {
    report.plots.push_back(std::move(plot));
  }
  if (auto norms = norm_plot(lines); !norms.series[0].points.empty()) {
    report.plots.push_back(std::move(norms));
  }
  LinePlot rate = plot_over_steps("Learning rate", "learning rate");
  rate.series.push_back(
      series_of(lines, "", false, [](const StepMetrics& l) { return l.lr; }));
  report.plots.push_back(std::move(rate));
  LinePlot speed = plot_over_steps("Throughput of all ranks", "tokens/s");
  speed.series.push_back(series_of(
      lines, "", false, [](const StepMetrics& l) { return l.tokens_per_s; }));
  report.plots.push_back(std::move(speed));
  if (auto series = utilization_series(lines); !series.points.empty()) {
    LinePlot plot = plot_over_steps(
        last.work && !last.work->is_measured
            ? "Model FLOPs utilization (MFU)"
            : "Matrix products, of measured peak",
        "%");
    plot.series.push_back(std::move(series));
    report.plots.push_back(std::move(plot));
  }
  if (const auto with_split = timed(lines); !with_split.empty()) {
    report.shares = shares_of(with_split);
    report.plots.push_back(time_plot(with_split));
  }
  return report;
}

namespace {

/// That of the run folder; empty if there is none.
std::string configuration_in(const std::filesystem::path& folder) {
  const auto config = folder / "config.json";
  return std::filesystem::exists(config) ? runtime::read_text_file(config) : "";
}

/// Its last name.
std::string name_of_run(const std::filesystem::path& folder) {
  return std::filesystem::absolute(folder).lexically_normal().filename();
}

} // namespace

MetricRun metric_run_of(
    const std::filesystem::path& folder,
    const std::vector<StepMetrics>& lines) {
  MetricRun run{folder, name_of_run(folder), nullptr, {}};
  if (const std::string text = configuration_in(folder); !text.empty()) {
    run.configuration = nlohmann::ordered_json::parse(text, nullptr, false);
  }
  for (const StepMetrics& line : lines) {
    run.lines.push_back(to_json(line));
  }
  return run;
}

void write_run_report(
    const std::filesystem::path& folder,
    const std::vector<StepMetrics>& lines,
    const RunFacts& facts) {
  runtime::write_file_atomically(folder / "loss.svg", to_svg(loss_plot(lines)));
  runtime::write_file_atomically(
      folder / "report.html",
      to_html(run_report(
          name_of_run(folder), lines, facts, configuration_in(folder))));
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& folder) {
  std::vector<StepMetrics> lines;
  const auto path = folder / "metrics.jsonl";
  if (!std::filesystem::exists(path)) {
    return lines;
  }
  std::istringstream all(runtime::read_text_file(path));
  for (std::string line; std::getline(all, line);) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object()) {
      break;
    }
    lines.push_back(step_metrics_of(json));
  }
  return lines;
}

} // namespace tessera::engine
