// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LinePlot` draws curves as SVG.

#include <string>
#include <vector>

namespace tessera::engine {

struct PlotPoint {
  double x;
  double y;
};

/// One curve. A point that is not finite (nan, inf, beyond 1e100) leaves a gap.
struct PlotSeries {
  std::string label; ///< In the legend; empty for none.
  std::vector<PlotPoint> points; ///< In drawing order, usually ascending in x.
  /// Draws the points faintly and over them a running mean: the mean of a
  /// centered window of a thirtieth of the points, cut off at both ends.
  bool smooth = false;
};

/// A line plot with title, axes, grid and legend.
struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
  int width_px = 960;
  int height_px = 540;
};

/// The plot as a self-contained SVG document on a white background. Its size is
/// bounded: points closer than a pixel are reduced to their extremes. Text is
/// UTF-8. Deterministic.
std::string to_svg(const LinePlot& plot);

} // namespace tessera::engine
