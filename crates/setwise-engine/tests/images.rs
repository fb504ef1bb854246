//! Operations on images against plain loops and finite differences, on ragged batches.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise_engine::*;

/// Sets of images with their offsets.
type Sets<T> = Vec<(Vec<T>, Vec<usize>)>;

fn random<T: Real>(n: usize, rng: &mut Pcg64Mcg) -> Vec<T> {
    (0..n).map(|_| T::from_f64(rng.random::<f64>() * 3.0 - 1.5)).collect()
}

fn sets<T: Real>(image: Image, sizes: &[&[usize]], rng: &mut Pcg64Mcg) -> Sets<T> {
    let set = |sizes: &&[usize]| {
        let mut offsets = vec![0];
        sizes.iter().for_each(|n| offsets.push(offsets.last().unwrap() + n));
        (random(offsets.last().unwrap() * image.numbers(), rng), offsets)
    };
    sizes.iter().map(set).collect()
}

fn view<T>(sets: &Sets<T>, image: Image) -> BatchView<'_, T> {
    BatchView { sets: sets.iter().map(|(data, offsets)| SetView { data, width: image.numbers(), offsets }).collect() }
}

/// A program of some operations on sets of images.
fn build(image: Image, sets: usize, mode: Mode, add: impl Fn(&mut ProgramBuilder, &[Value]) -> Vec<Value>) -> Program {
    let mut b = Program::builder(&vec![image.numbers(); sets], false, mode, true);
    let inputs: Vec<Value> = (0..sets).map(|k| b.input(k)).collect();
    let outputs = add(&mut b, &inputs);
    b.finish(outputs)
}

/// The convolution as the sum that defines it.
fn plain_convolution(x: &[f64], from: Image, window: Window, filters: usize, weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let (k, s, p) = (window.kernel as isize, window.stride as isize, window.padding as isize);
    let mut y = Vec::new();
    let mut top = -p;
    while top + k <= from.height as isize + p {
        let mut left = -p;
        while left + k <= from.width as isize + p {
            for o in 0..filters {
                let mut sum = bias.get(o).copied().unwrap_or(0.0);
                for i in 0..k {
                    for j in 0..k {
                        let (row, col) = (top + i, left + j);
                        if row < 0 || col < 0 || row >= from.height as isize || col >= from.width as isize {
                            continue;
                        }
                        for c in 0..from.channels {
                            let pixel = (row as usize * from.width + col as usize) * from.channels + c;
                            let at = ((o as isize * k + i) * k + j) as usize * from.channels + c;
                            sum += x[pixel] * weight[at];
                        }
                    }
                }
                y.push(sum);
            }
            left += s;
        }
        top += s;
    }
    y
}

const WINDOWS: [Window; 6] = [
    Window { kernel: 3, stride: 1, padding: 1 },
    Window { kernel: 7, stride: 2, padding: 3 },
    Window { kernel: 1, stride: 1, padding: 0 },
    Window { kernel: 3, stride: 2, padding: 0 },
    Window { kernel: 2, stride: 3, padding: 2 },
    Window { kernel: 5, stride: 1, padding: 4 },
];

#[test]
fn convolutions_are_the_sums_over_their_windows() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for window in WINDOWS {
        for (height, width, channels, filters) in [(7, 9, 3, 5), (12, 5, 1, 32), (5, 5, 4, 40), (9, 8, 16, 3)] {
            let image = Image { height, width, channels };
            for bias in [false, true] {
                let program =
                    build(image, 2, Mode::Infer, |b, xs| b.convolution("c", xs, image, filters, window, bias).0);
                let mut cpu = Cpu::<f64>::new(program);
                let params: Vec<f64> = cpu.program().params().init(&mut rng);
                let batch = sets(image, &[&[1, 3, 2], &[4, 1, 1]], &mut rng);
                cpu.forward(&params, &view(&batch, image)).unwrap();
                let (weight, rest) = params.split_at(filters * window.kernel * window.kernel * channels);
                for (k, (data, _)) in batch.iter().enumerate() {
                    let exact: Vec<f64> = data
                        .chunks(image.numbers())
                        .flat_map(|x| plain_convolution(x, image, window, filters, weight, rest))
                        .collect();
                    let found = cpu.output(k);
                    assert_eq!(found.len(), exact.len(), "{window:?} on {image:?}");
                    assert!(found.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-12), "{window:?} on {image:?}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "an input occurs twice")]
fn a_convolution_of_the_same_value_twice_is_rejected() {
    let (image, window) = (Image { height: 4, width: 4, channels: 2 }, WINDOWS[0]);
    build(image, 1, Mode::Train, |b, xs| b.convolution("c", &[xs[0], xs[0]], image, 3, window, true).0);
}

#[test]
fn max_pooling_drops_odd_borders_and_propagates_nan() {
    for (height, width) in [(4, 6), (5, 7), (2, 3), (105, 9)] {
        let image = Image { height, width, channels: 3 };
        let mut cpu = Cpu::<f32>::new(build(image, 1, Mode::Infer, |b, xs| b.max_pool(xs, image).0));
        let mut rng = Pcg64Mcg::seed_from_u64(2);
        let mut batch: Sets<f32> = sets(image, &[&[2, 1]], &mut rng);
        batch[0].0[0] = f32::NAN;
        cpu.forward(&[], &view(&batch, image)).unwrap();
        let data = &batch[0].0;
        let (h, w) = (height / 2, width / 2);
        assert_eq!(cpu.output(0).len(), 3 * h * w * 3);
        for (i, &found) in cpu.output(0).iter().enumerate() {
            let (n, y, x, c) = (i / (h * w * 3), i / (w * 3) % h, i / 3 % w, i % 3);
            let at = |dy, dx| data[((n * height + 2 * y + dy) * width + 2 * x + dx) * 3 + c];
            if i == 0 {
                assert!(found.is_nan());
            } else {
                assert_eq!(found, at(0, 0).max(at(0, 1)).max(at(1, 0)).max(at(1, 1)));
            }
        }
    }
}

#[test]
fn batch_norm_uses_all_images_of_all_sets_in_training_and_running_averages_in_inference() {
    let image = Image { height: 3, width: 5, channels: 18 };
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    // One set has more pixels than a part.
    let batch: Sets<f64> = sets(image, &[&[1, 70, 2], &[3, 1, 1]], &mut rng);
    let norm = |mode, activation| build(image, 2, mode, |b, xs| b.batch_norm("n", xs, image, activation));
    let mut cpu = Cpu::<f64>::new(norm(Mode::Train, Activation::None));
    let mut params: Vec<f64> = random(4 * 18, &mut rng);
    params[54..].iter_mut().for_each(|v| *v = v.abs() + 0.1);
    cpu.forward(&params, &view(&batch, image)).unwrap();
    let outputs = [cpu.output(0).to_vec(), cpu.output(1).to_vec()];
    let ones: Vec<Vec<f64>> = outputs.iter().map(|o| vec![1.0; o.len()]).collect();
    let mut grads = vec![0.0; params.len()];
    cpu.backward(&params, &[&ones[0], &ones[1]], &mut grads).unwrap();
    let mut fixed = Cpu::<f64>::new(norm(Mode::Infer, Activation::Relu));
    fixed.forward(&params, &view(&batch, image)).unwrap();
    for c in 0..18 {
        let channel: Vec<f64> = batch.iter().flat_map(|(d, _)| d[c..].iter().step_by(18).copied()).collect();
        let n = channel.len() as f64;
        let mean = channel.iter().sum::<f64>() / n;
        let variance = channel.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        assert!((grads[36 + c] - mean).abs() < 1e-12, "the batch mean in the gradient buffer");
        assert!((grads[54 + c] - variance * n / (n - 1.0)).abs() < 1e-9, "the unbiased variance");
        for k in 0..2 {
            for (i, &x) in batch[k].0.iter().enumerate().filter(|(i, _)| i % 18 == c) {
                let exact = (x - mean) / (variance + 1e-5).sqrt() * params[c] + params[18 + c];
                assert!((outputs[k][i] - exact).abs() < 1e-11);
                let exact = (x - params[36 + c]) / (params[54 + c] + 1e-5).sqrt() * params[c] + params[18 + c];
                assert!((fixed.output(k)[i] - exact.max(0.0)).abs() < 1e-11);
            }
        }
    }
}

/// Gradients of parameters and inputs against central differences of a weighted sum of all outputs.
fn check_gradients(name: &str, program: Program, image: Image, sizes: &[&[usize]], seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut cpu = Cpu::<f64>::new(program);
    let mut params: Vec<f64> = cpu.program().params().init(&mut rng);
    params.iter_mut().for_each(|p| *p += rng.random::<f64>() * 0.2);
    let mut batch: Sets<f64> = sets(image, sizes, &mut rng);
    let (outputs, trained) = (cpu.program().outputs().len(), cpu.program().params().trained());
    cpu.forward(&params, &view(&batch, image)).unwrap();
    let weights: Vec<Vec<f64>> = (0..outputs).map(|i| random(cpu.output(i).len(), &mut rng)).collect();
    let mut grads = vec![f64::NAN; params.len()];
    let slopes: Vec<&[f64]> = weights.iter().map(Vec::as_slice).collect();
    cpu.backward(&params, &slopes, &mut grads).unwrap();
    let inputs: Vec<Vec<f64>> = (0..batch.len()).map(|k| cpu.input_grad(k).unwrap().to_vec()).collect();
    let mut loss = |params: &[f64], batch: &Sets<f64>| -> f64 {
        cpu.forward(params, &view(batch, image)).unwrap();
        (0..outputs).map(|i| cpu.output(i).iter().zip(&weights[i]).map(|(o, w)| o * w).sum::<f64>()).sum()
    };
    // A step may cross a kink; a shorter one then does not.
    let check = |what: String, gradient: f64, at: &mut dyn FnMut(f64) -> f64| {
        let differences = [1e-5, 1e-6, 1e-7].map(|h| (at(h) - at(-h)) / (2.0 * h));
        let close = |d: &f64| (gradient - d).abs() <= 2e-6 * gradient.abs().max(1.0);
        assert!(differences.iter().any(close), "{name}: {what}: gradient {gradient}, differences {differences:?}");
    };
    for i in (0..trained).step_by(1 + trained / 150) {
        let before = params[i];
        check(format!("parameter {i}"), grads[i], &mut |h| {
            params[i] = before + h;
            let value = loss(&params, &batch);
            params[i] = before;
            value
        });
    }
    for k in 0..batch.len() {
        for i in (0..batch[k].0.len()).step_by(1 + batch[k].0.len() / 40) {
            let before = batch[k].0[i];
            check(format!("input {k} at {i}"), inputs[k][i], &mut |h| {
                batch[k].0[i] = before + h;
                let value = loss(&params, &batch);
                batch[k].0[i] = before;
                value
            });
        }
    }
}

#[test]
fn convolutions_have_the_gradients_of_finite_differences() {
    for (i, window) in WINDOWS.into_iter().enumerate() {
        let image = Image { height: 6, width: 5, channels: 2 };
        for bias in [false, true] {
            let program = build(image, 2, Mode::Train, |b, xs| b.convolution("c", xs, image, 3, window, bias).0);
            check_gradients(&format!("{window:?}"), program, image, &[&[1, 3], &[2, 1]], i as u64);
        }
    }
}

#[test]
fn max_pooling_has_the_gradients_of_finite_differences() {
    let image = Image { height: 5, width: 4, channels: 3 };
    let program = build(image, 2, Mode::Train, |b, xs| b.max_pool(xs, image).0);
    check_gradients("max pooling", program, image, &[&[1, 3], &[2, 1]], 5);
}

#[test]
fn batch_norm_has_the_gradients_of_finite_differences() {
    let image = Image { height: 3, width: 2, channels: 5 };
    for activation in [Activation::None, Activation::Relu] {
        let program = build(image, 2, Mode::Train, |b, xs| b.batch_norm("n", xs, image, activation));
        check_gradients("batch norm", program, image, &[&[1, 3], &[2, 1]], 6);
        // Several parts of pixels.
        let program = build(image, 1, Mode::Train, |b, xs| b.batch_norm("n", xs, image, activation));
        check_gradients("batch norm of many pixels", program, image, &[&[100, 101]], 7);
    }
}

/// Two layers whose weights the sets share; the input is read twice, so that gradients add up.
fn stack(b: &mut ProgramBuilder, xs: &[Value], image: Image) -> Vec<Value> {
    let window = Window { kernel: 3, stride: 1, padding: 1 };
    let (ys, _) = b.convolution("first", xs, image, 6, window, false);
    let hidden = Image { channels: 6, ..image };
    let ys = b.batch_norm("norm", &ys, hidden, Activation::Relu);
    let (ys, half) = b.max_pool(&ys, hidden);
    let (ys, last) = b.convolution("second", &ys, half, 4, Window { kernel: 2, stride: 2, padding: 1 }, true);
    let ys = b.batch_norm("last", &ys, last, Activation::None);
    let again = b.batch_norm("again", xs, image, Activation::Relu);
    let (again, _) = b.max_pool(&again, image);
    let (direct, _) = b.max_pool(xs, image);
    [ys, again, direct].concat()
}

#[test]
fn stacked_layers_have_the_gradients_of_finite_differences() {
    let image = Image { height: 7, width: 6, channels: 2 };
    let program = build(image, 2, Mode::Train, |b, xs| stack(b, xs, image));
    check_gradients("layers", program, image, &[&[1, 3], &[2, 1]], 8);
}

/// Without batch norm examples do not depend on each other, and small programs run some of them at a time.
fn uncoupled(b: &mut ProgramBuilder, xs: &[Value], image: Image) -> Vec<Value> {
    let (ys, made) = b.convolution("c", xs, image, 5, Window { kernel: 3, stride: 2, padding: 1 }, true);
    b.max_pool(&ys, made).0
}

#[test]
fn the_number_of_threads_changes_no_bit_and_a_step_has_the_gradients_of_its_passes() {
    let image = Image { height: 9, width: 10, channels: 3 };
    let mut rng = Pcg64Mcg::seed_from_u64(4);
    let batch = sets(image, &[&[5, 1, 30, 2, 7, 3, 3, 9], &[1, 40, 2, 2, 8, 3, 1, 1]], &mut rng);
    for coupled in [true, false] {
        let program = build(image, 2, Mode::Train, |b, xs| match coupled {
            true => stack(b, xs, image),
            false => uncoupled(b, xs, image),
        });
        assert_eq!(program.couples_examples(), coupled);
        let params: Vec<f32> = program.params().init(&mut rng);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut cpu = Cpu::<f32>::new(program.clone());
                let mut grads = vec![0.0; params.len()];
                let loss = cpu.step(&params, &view(&batch, image), &mut grads, |part| {
                    let mut sum = 0.0;
                    for (values, grads) in part.values.iter().zip(part.grads) {
                        grads.copy_from_slice(values);
                        sum += values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
                    }
                    sum
                });
                (loss.unwrap(), grads)
            })
        };
        let one = run(1);
        for threads in [2, 3, 8] {
            assert!(one == run(threads), "{threads} threads");
        }
        let mut cpu = Cpu::<f32>::new(program.clone());
        cpu.forward(&params, &view(&batch, image)).unwrap();
        let outputs: Vec<Vec<f32>> = (0..program.outputs().len()).map(|i| cpu.output(i).to_vec()).collect();
        let slopes: Vec<&[f32]> = outputs.iter().map(Vec::as_slice).collect();
        let mut grads = vec![0.0; params.len()];
        cpu.backward(&params, &slopes, &mut grads).unwrap();
        let scale = grads.iter().fold(0.0f32, |m, g| m.max(g.abs()));
        assert!(grads.iter().zip(&one.1).all(|(a, b)| (a - b).abs() <= 1e-5 * scale), "coupled: {coupled}");
    }
}
