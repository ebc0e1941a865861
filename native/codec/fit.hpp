// Weights of a code's neighbours by least squares.
#pragma once

#include <cmath>
#include <cstdint>

namespace elbowroom {

// To 64ths, so that the sum is right too: an error in it would shift every prediction by a share of
// the field's mean. A sum near one is meant to be one.
inline void round_together(const double* w, std::int16_t* weights) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += 64.0 * w[i];
    long missing = std::lrint(std::fabs(sum - 64.0) < 2.0 ? 64.0 : sum);
    for (int i = 0; i < 4; ++i) {
        weights[i] = static_cast<std::int16_t>(std::floor(64.0 * w[i]));
        missing -= weights[i];
    }
    bool raised[4] = {};
    for (; missing > 0; --missing) {
        int most = -1;
        double best = -1e300;
        for (int i = 0; i < 4; ++i) {
            const double rest = 64.0 * w[i] - weights[i] - (raised[i] ? 2.0 : 0.0);
            // A weight of zero stays: its neighbour may not exist.
            if (w[i] != 0 && rest > best) {
                best = rest;
                most = i;
            }
        }
        if (most < 0) return;
        ++weights[most];
        raised[most] = true;
    }
    for (; missing < 0; ++missing) {
        int least = 0;
        for (int i = 1; i < 4; ++i)
            if (w[i] != 0 && 64.0 * w[i] - weights[i] < 64.0 * w[least] - weights[least]) least = i;
        --weights[least];
    }
}

// Least-squares weights of the four neighbours, from every third code that has them all.
struct Fit {
    double moment[4][5] = {};
    int terms = 4;

    void add(const double* x, double y) {
        for (int i = 0; i < terms; ++i) {
            for (int j = i; j < terms; ++j) moment[i][j] += x[i] * x[j];
            moment[i][4] += x[i] * y;
        }
    }

    bool solve(std::int16_t* weights) {
        double m[4][5];
        for (int i = 0; i < terms; ++i) {
            for (int j = 0; j < terms; ++j) m[i][j] = i <= j ? moment[i][j] : moment[j][i];
            m[i][i] *= 1.0 + 1e-9;
            m[i][4] = moment[i][4];
        }
        double w[4] = {};
        for (int i = 0; i < terms; ++i) {
            if (!(m[i][i] > 1e-12 * (moment[i][i] + 1e-300))) return false;
            for (int k = i + 1; k < terms; ++k) {
                const double f = m[k][i] / m[i][i];
                for (int j = i; j < terms; ++j) m[k][j] -= f * m[i][j];
                m[k][4] -= f * m[i][4];
            }
        }
        for (int i = terms - 1; i >= 0; --i) {
            w[i] = m[i][4];
            for (int j = i + 1; j < terms; ++j) w[i] -= m[i][j] * w[j];
            w[i] /= m[i][i];
            if (!(std::fabs(w[i]) < 8.0)) return false;
        }
        round_together(w, weights);
        return true;
    }
};

}  // namespace elbowroom
