"""The facade, with tf.distribute's names."""
