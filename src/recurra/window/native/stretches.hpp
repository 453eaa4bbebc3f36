// Stretches of some hundred operators of a program, each through the window or not: see trial.hpp.
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

// A program, identified by the first operators of its blocks, and its current stretch.
struct Program {
  static constexpr int kOperators = 256, kMost = 1280;  // of a stretch: at least, at most
  static constexpr int kStrange = 8;                     // stretches of mostly new shapes

  Trial trial;
  std::uint64_t epoch = 0;  // of the weights of operators, one per trial
  bool seen = false;        // whether the gain was predicted, from a stretch without the window
  int strange = 0;
  double predicted = 0;

  double seconds = 0, work = 0, aside = 0;  // aside: our own time without the window
  int operators = 0, fresh = 0;             // fresh: with new signatures
  std::optional<Clock::time_point> left;    // time of the last return to the program in this block

  struct Block {
    int operators = 0;
    double work = 0;
  };
  Block block, last;   // the current one, as far as it was intercepted; the one before
  bool alike = false;  // whether these two are equal: then the next one is not intercepted

  // Returns whether the next stretch goes through the window.
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

  // Adds the work of an intercepted operator.
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

  // Assumes that the current block, which is not intercepted, equals the last one.
  void believe() {
    operators += last.operators;
    work += last.work;
  }

  // Ends a stretch if it is long enough.
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
