// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SvgCanvas` draws the SVG shapes of a plot.

#include <span>
#include <sstream>
#include <string>
#include <string_view>

namespace tessera::engine {

/// A position in pixels from the upper left corner.
struct Pixel {
  double x;
  double y;
};

struct Stroke {
  const char* color;
  double width = 1;
  double opacity = 1;
};

struct TextStyle {
  const char* color;
  double size = 13;
  const char* anchor = "start"; ///< "start", "middle" or "end".
  bool bold = false;
  bool upward = false; ///< Rotated to read from bottom to top.
};

/// Collects shapes of an SVG document; later ones cover earlier ones. The same
/// calls give the same bytes, independent of the process's locale.
class SvgCanvas {
 public:
  /// A white canvas. `title` is the text for screen readers.
  SvgCanvas(int width_px, int height_px, std::string_view title);

  void line(Pixel from, Pixel to, const Stroke& stroke);

  /// A single point is drawn as a dot.
  void polyline(std::span<const Pixel> points, const Stroke& stroke);

  void dot(Pixel center, double radius, const char* color);

  /// Puts the baseline of the text at `at`. Markup in it is escaped.
  void text(Pixel at, std::string_view content, const TextStyle& style);

  /// The whole document.
  std::string document() const;

 private:
  void write_stroke(const Stroke& stroke);

  std::ostringstream out_;
};

/// The approximate width of a text in pixels in the canvas's font.
double text_width(std::string_view text, double size);

} // namespace tessera::engine
