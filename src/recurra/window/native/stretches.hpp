// A program in stretches of some hundred operators, each through the window or not: see trial.hpp.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>

#include "prediction.hpp"
#include "trial.hpp"

namespace recurra {

inline double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// What a program, known by how its blocks begin, has shown; and its present stretch.
struct Program {
  static constexpr int kOperators = 256, kMost = 1280;  // of a stretch; without an end of a block
  static constexpr int kStrange = 8;                     // stretches of new shapes: it never ends

  Trial trial;
  std::uint64_t epoch = 0;  // what operators weigh is taken anew for each examination
  bool seen = false;        // one stretch, without the window, from which the gain is predicted
  int strange = 0;
  double predicted = 0;

  double seconds = 0, work = 0, aside = 0;  // aside: our own time, when it is not the window's
  int operators = 0, fresh = 0;             // fresh: seen for the first time
  std::optional<Clock::time_point> left;    // the program went on, of this block

  struct Block {
    int operators = 0;
    double work = 0;
  };
  Block block, last;   // the present one, as far as it was looked at; the one before
  bool alike = false;  // these two were: the next is believed to be, without being looked at

  // The next stretch: through the window or not.
  bool next(double now) {
    const bool was = trial.examining();
    const bool on = trial.next(now);
    if (trial.examining() && !was) weigh_anew();
    return seen && on;
  }

  bool off(double now) {
    next(now);
    return !trial.examining() && !trial.next(now);
  }

  // One more operator that was looked at.
  void met(double weight) {
    work += weight;
    block.work += weight;
  }

  void end_block() {
    left.reset();
    const bool same = std::abs(block.work - last.work) <= 1e-9 * block.work;
    alike = block.operators && block.operators == last.operators && same;
    last = block;
  }

  // The present block is not looked at.
  void believe() {
    operators += last.operators;
    work += last.work;
  }

  // A stretch is over, if it is long enough.
  void end(bool on, double now, Prediction& prediction, int threads) {
    if (operators < kOperators) return;
    const double wall = seconds - (on ? 0.0 : aside);
    if (20 * fresh > operators) {
      if (++strange >= kStrange) trial.refuse(now), strange = 0;
    } else if (!seen) {
      seen = true;
      weigh_anew();
      predicted = prediction.gain(threads);
      if (predicted < 1.1) trial.refuse(now);
    } else if (work > 0) {
      trial.done(on, wall, work, now);
    }
    seconds = work = aside = 0;
    operators = fresh = 0;
    prediction = {};
  }

  void weigh_anew() {
    epoch = ++epochs;
    last = {};
    alike = false;
  }

  inline static std::uint64_t epochs = 0;
};

}  // namespace recurra
