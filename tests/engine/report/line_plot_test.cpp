// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/line_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/engine/report/plot_curve.h"

namespace tessera::engine::line_plot_test {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

LinePlot plot_of(std::vector<PlotPoint> points) {
  return {"t", "x", "y", {{"s", std::move(points)}}};
}

// Whether every element is closed and no text breaks the markup; enough for
// the few elements that a plot has.
void expect_well_formed(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(count(svg, "\"") % 2, 0u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

} // namespace

TEST(LinePlot, HasTitleLabelsLegendAndCurves) {
  LinePlot plot{"Loss", "step", "nats", {}};
  plot.series.push_back({"train", {{1, 2}, {2, 1}, {3, 1.5}}, true});
  plot.series.push_back({"held out", {{1, 2.5}, {3, 2}}});
  const std::string svg = to_svg(plot);
  expect_well_formed(svg);
  for (const char* text : {">Loss<", ">step<", ">nats<", ">train<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(count(svg, "<path "), 3u); // Faint, smooth, and the second curve.
  EXPECT_EQ(count(svg, "<circle "), 2u); // The few points of the second.
  EXPECT_EQ(svg, to_svg(plot));
}

TEST(LinePlot, PlacesPointsWhereTheyBelong) {
  // The corners of the frame: x without margin, y with 4 % on both sides.
  LinePlot plot = plot_of({{0, 0}, {10, 1}});
  const std::string svg = to_svg(plot);
  const size_t path = svg.find(" d=\"M");
  ASSERT_NE(path, std::string::npos);
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  ASSERT_EQ(
      std::sscanf(
          svg.c_str() + path, " d=\"M%lf %lfL%lf %lf", &x0, &y0, &x1, &y1),
      4);
  EXPECT_EQ(x1, plot.width_px - 30);
  EXPECT_GT(x0, 40);
  EXPECT_LT(x0, 120);
  const double bottom = plot.height_px - 62;
  const double frame_height = (y0 - y1) * 1.08;
  // Coordinates are rounded to a tenth of a pixel.
  EXPECT_NEAR(y0, bottom - 0.04 * frame_height / 1.08, 0.2);
  EXPECT_NEAR(y1, bottom - frame_height * (1.04 / 1.08), 0.2);
}

TEST(LinePlot, TextCannotBreakTheMarkup) {
  LinePlot plot{"<b> & \"q\" \n", "</svg>", "&lt;", {{"a<b", {{0, 1}}}}};
  const std::string svg = to_svg(plot);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("&lt;b&gt; &amp; &quot;q&quot;  <"), std::string::npos);
  EXPECT_NE(svg.find(">a&lt;b<"), std::string::npos);
}

TEST(LinePlot, SurvivesOddData) {
  const std::vector<std::vector<PlotPoint>> cases{
      {},
      {{kNan, kNan}},
      {{0, 0}},
      {{5, 3}, {5, 3}},
      {{0, 1}, {1, kNan}, {2, kInfinity}, {3, -kInfinity}, {4, 2}},
      {{0, 1e308}, {1, -1e308}, {2, 1}},
      {{0, 1e99}, {1, -1e99}},
      {{0, 1e-300}, {1, 2e-300}},
      {{1e15, 1}, {1e15 + 1, 1 + 1e-15}},
      {{3, 1}, {1, 2}, {2, 3}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    for (const bool smooth : {false, true}) {
      LinePlot plot = plot_of(cases[i]);
      plot.series.front().smooth = smooth;
      expect_well_formed(to_svg(plot));
    }
  }
  expect_well_formed(to_svg({}));
  EXPECT_NE(to_svg(plot_of({})).find("no data"), std::string::npos);
}

TEST(LinePlot, PointsThatAreNotFiniteLeaveAGap) {
  const std::string svg =
      to_svg(plot_of({{0, 1}, {1, 2}, {2, kNan}, {3, 1}, {4, 2}}));
  EXPECT_EQ(count(svg, "<path "), 2u);
  EXPECT_EQ(count(svg, "<circle "), 4u);
}

TEST(LinePlot, SizeStaysBounded) {
  std::vector<PlotPoint> points;
  for (int i = 0; i < 300'000; ++i) {
    points.push_back({static_cast<double>(i), std::sin(i * 0.7)});
  }
  LinePlot plot = plot_of(points);
  plot.series.front().smooth = true;
  // At most four points a column for 2 curves, about 13 bytes each.
  EXPECT_LT(to_svg(plot).size(), 4u * 2 * 13 * 960 + 10'000);
}

TEST(LinePlot, LegendWrapsIntoRowsInsideThePicture) {
  LinePlot plot{"t", "x", "y", {}, 400, 400};
  for (int i = 0; i < 8; ++i) {
    plot.series.push_back(
        {"series number " + std::to_string(i), {{0, 0.0 + i}, {1, 1}}});
  }
  const std::string svg = to_svg(plot);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, ">series number "), 8u);
  double widest = 0;
  for (size_t at = svg.find("x2=\""); at != std::string::npos;
       at = svg.find("x2=\"", at + 1)) {
    widest = std::max(widest, std::stod(svg.substr(at + 4)));
  }
  EXPECT_LE(widest, 400);
}

TEST(Smoothed, AveragesACentredWindow) {
  // 60 points: the window is the point and one neighbour on either side.
  std::vector<PlotPoint> points;
  for (int i = 0; i < 60; ++i) {
    points.push_back({static_cast<double>(i), i % 3 == 0 ? 3.0 : 0.0});
  }
  const auto means = smoothed(points);
  ASSERT_EQ(means.size(), 60u);
  for (size_t i = 1; i + 1 < means.size(); ++i) {
    EXPECT_DOUBLE_EQ(means[i].y, 1.0);
    EXPECT_EQ(means[i].x, points[i].x);
  }
  EXPECT_DOUBLE_EQ(means.front().y, 1.5); // Of 3 and 0.
  EXPECT_DOUBLE_EQ(means.back().y, 0.0);
}

TEST(Thinned, KeepsFirstExtremesAndLastOfAColumn) {
  const std::vector<Pixel> points{
      {0.1, 5}, {0.2, 9}, {0.3, 6}, {0.4, 1}, {0.9, 4}, {1.5, 2}};
  const auto kept = thinned(points);
  std::vector<double> ys;
  for (const Pixel& pixel : kept) {
    ys.push_back(pixel.y);
  }
  EXPECT_EQ(ys, (std::vector<double>{5, 9, 1, 4, 2}));
}

} // namespace tessera::engine::line_plot_test
