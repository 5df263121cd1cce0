// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "tessera/engine/report/plot_curve.h"
#include "tessera/engine/report/plot_ticks.h"
#include "tessera/engine/report/svg_canvas.h"

namespace tessera::engine {

namespace {

// Distinct for most kinds of color vision, dark enough on white.
constexpr std::array<const char*, 9> kColors{
    "#2563a8",
    "#d1571b",
    "#1f8a5f",
    "#8a4fb0",
    "#a8871a",
    "#5b6470",
    "#c2185b",
    "#0097a7",
    "#6d4c41"};
constexpr const char* kInk = "#1b1f24";
constexpr const char* kMuted = "#57606a";
constexpr const char* kAxis = "#9aa3ad";
constexpr const char* kGrid = "#e4e7eb";

constexpr double kTitlePx = 19;
constexpr double kLabelPx = 13;
constexpr double kTickPx = 12;
constexpr double kLegendRow = 22;
constexpr double kLegendLine = 26;

// With few points, each is a single measurement and gets a dot.
constexpr size_t kMostDots = 40;

struct Range {
  double low = 0;
  double high = 0;
};

// Distinct ends, with a margin of the given fraction on both sides.
Range widened(Range range, double margin) {
  const double span = range.high - range.low;
  const double scale = std::max(std::abs(range.low), std::abs(range.high));
  if (span <= 1e-9 * scale) {
    const double half = scale == 0 ? 1 : 0.1 * scale;
    return {range.low - half, range.high + half};
  }
  return {range.low - margin * span, range.high + margin * span};
}

class Drawing {
 public:
  explicit Drawing(const LinePlot& plot)
      : plot_(plot), canvas_(plot.width_px, plot.height_px, plot.title) {
    measure();
    place_legend();
  }

  std::string draw() {
    canvas_.text({left_, 34}, plot_.title, {kInk, kTitlePx, "start", true});
    if (has_points_) {
      draw_axes();
      for (size_t i = 0; i < plot_.series.size(); ++i) {
        draw_series(plot_.series[i], color(i));
      }
    } else {
      canvas_.text(center(), "no data", {kMuted, kLabelPx, "middle"});
    }
    draw_legend();
    canvas_.text(
        {center().x, bottom_ + 46}, plot_.x_label, {kInk, kLabelPx, "middle"});
    canvas_.text(
        {22, center().y},
        plot_.y_label,
        {kInk, kLabelPx, "middle", false, true});
    return canvas_.document();
  }

 private:
  static const char* color(size_t series) {
    return kColors[series % kColors.size()];
  }

  // Finds ranges, ticks, and the frame that leaves room for the texts.
  void measure() {
    bool full_x = true;
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) {
        if (!is_drawable(point)) {
          continue;
        }
        if (!has_points_) {
          x_ = {point.x, point.x};
          y_ = {point.y, point.y};
          has_points_ = true;
        }
        x_ = {std::min(x_.low, point.x), std::max(x_.high, point.x)};
        y_ = {std::min(y_.low, point.y), std::max(y_.high, point.y)};
        full_x = full_x && point.x == std::floor(point.x);
      }
    }
    x_ = widened(x_, 0);
    y_ = widened(y_, 0.04);
    x_ticks_ = make_ticks(x_.low, x_.high, 9, full_x);
    y_ticks_ = make_ticks(y_.low, y_.high, 7);
    double widest = 0;
    for (const std::string& label : y_ticks_.labels) {
      widest = std::max(widest, text_width(label, kTickPx));
    }
    left_ = 52 + widest;
    right_ = plot_.width_px - 30;
    bottom_ = plot_.height_px - 62;
  }

  // Rows above the frame, where no curve can hide the legend or hide in it.
  void place_legend() {
    double x = left_;
    double y = 62;
    top_ = 56;
    for (const PlotSeries& series : plot_.series) {
      const double width =
          kLegendLine + 8 + text_width(series.label, kLabelPx) + 20;
      if (x > left_ && x + width > right_) {
        x = left_;
        y += kLegendRow;
      }
      legend_.push_back({x, y});
      if (!series.label.empty()) {
        x += width;
        top_ = y + kLegendRow;
      }
    }
  }

  Pixel center() const {
    return {(left_ + right_) / 2, (top_ + bottom_) / 2};
  }

  Pixel to_pixel(const PlotPoint& point) const {
    return {
        left_ + (point.x - x_.low) / (x_.high - x_.low) * (right_ - left_),
        bottom_ - (point.y - y_.low) / (y_.high - y_.low) * (bottom_ - top_)};
  }

  void draw_axes() {
    for (size_t i = 0; i < y_ticks_.values.size(); ++i) {
      const double y = to_pixel({x_.low, y_ticks_.values[i]}).y;
      canvas_.line({left_, y}, {right_, y}, {kGrid});
      canvas_.text(
          {left_ - 10, y + 4}, y_ticks_.labels[i], {kMuted, kTickPx, "end"});
    }
    for (size_t i = 0; i < x_ticks_.values.size(); ++i) {
      const double x = to_pixel({x_ticks_.values[i], y_.low}).x;
      canvas_.line({x, top_}, {x, bottom_}, {kGrid});
      canvas_.line({x, bottom_}, {x, bottom_ + 5}, {kAxis});
      canvas_.text(
          {x, bottom_ + 20}, x_ticks_.labels[i], {kMuted, kTickPx, "middle"});
    }
    canvas_.line({left_, bottom_}, {right_, bottom_}, {kAxis});
  }

  void draw_legend() {
    for (size_t i = 0; i < plot_.series.size(); ++i) {
      if (plot_.series[i].label.empty()) {
        continue;
      }
      const Pixel at = legend_[i];
      canvas_.line(at, {at.x + kLegendLine, at.y}, {color(i), 3});
      canvas_.text(
          {at.x + kLegendLine + 8, at.y + 4.5},
          plot_.series[i].label,
          {kInk, kLabelPx});
    }
  }

  void draw_series(const PlotSeries& series, const char* stroke) {
    if (series.smooth) {
      draw_curve(series.points, {stroke, 1.2, 0.3});
      draw_curve(smoothed(series.points), {stroke, 2.4});
      return;
    }
    draw_curve(series.points, {stroke, 2});
    if (series.points.size() <= kMostDots) {
      for (const PlotPoint& point : series.points) {
        if (is_drawable(point)) {
          canvas_.dot(to_pixel(point), 3.2, stroke);
        }
      }
    }
  }

  // One line for each run of drawable points.
  void draw_curve(const std::vector<PlotPoint>& points, const Stroke& stroke) {
    std::vector<Pixel> run;
    for (size_t i = 0; i <= points.size(); ++i) {
      if (i < points.size() && is_drawable(points[i])) {
        run.push_back(to_pixel(points[i]));
      } else if (!run.empty()) {
        canvas_.polyline(thinned(run), stroke);
        run.clear();
      }
    }
  }

  const LinePlot& plot_;
  SvgCanvas canvas_;
  bool has_points_ = false;
  Range x_;
  Range y_;
  Ticks x_ticks_;
  Ticks y_ticks_;
  // The frame, in pixels.
  double left_ = 0;
  double right_ = 0;
  double top_ = 0;
  double bottom_ = 0;
  std::vector<Pixel> legend_; // Where each series' entry starts.
};

} // namespace

std::string to_svg(const LinePlot& plot) {
  return Drawing(plot).draw();
}

} // namespace tessera::engine
